// Panel of training curves: metric, log axis, smoothing; several runs in one chart.

import { poll } from "./api.js";
import { Chart, seriesColour, seriesDash, smoothed, swatch } from "./curves.js";
import { choice, field, make, words } from "./dom.js";
import { panel } from "./panel.js";
import { EventLog } from "./event-log.js";
import { remember } from "./route.js";
import { empty, skeleton } from "./states.js";

const SECONDS = 1;
const SECONDS_AT_REST = 5;
/** Smoothing until a reader moves the slider. Below this number of points there is none: a line that lags would be wrong. */
const SMOOTHNESS = 0.5, SMOOTHED_POINTS = 50;

export class CurvePanel {
  /** `onStatus(eventLog)` is called for every run that has changed; `colourOf(name)` is the colour number of a run, `smoothing(name)` its label smoothing. */
  constructor(params, signal, { height = 320, title = "Curves", onStatus = () => {}, colourOf = () => 0, command = null, commandOf = null, smoothing = () => 0 } = {}) {
    Object.assign(this, { signal, onStatus, colourOf, commandOf, smoothing, eventLogs: new Map(), shown: [] });
    this.metric = params.get("metric") ?? "loss";
    this.isLog = params.get("log") === "1";
    // null: by the number of points, until a reader moves the slider.
    this.smoothness = params.has("smooth") ? Math.min(Math.max(Number(params.get("smooth")) || 0, 0), 0.99) : null;
    this.chart = new Chart({ height, label: "training curves" });
    this.legend = make("ul.legend");
    this.body = make("div", {}, skeleton(6, "Loading the curves"));
    this.metrics = choice([["loss", "loss"]], "loss", (value) => { this.metric = value; this.save(); });
    const log = make("input", { type: "checkbox", checked: this.isLog, onchange: () => { this.isLog = log.checked; this.save(); } });
    const smooth = this.slider = make("input", {
      type: "range", min: 0, max: 0.99, step: 0.01, value: this.smoothness ?? 0,
      oninput: () => { this.smoothness = Number(smooth.value); this.save(); },
    });
    this.element = panel(title, { files: this.chart.files(), name: "curves", command, tools: [
      field("Metric", this.metrics, "inline"), field("Log axis", log, "inline"), field("Smoothing", smooth, "inline"),
    ] }, this.body);
    signal.addEventListener("abort", () => this.chart.close(), { once: true });
  }

  save() {
    remember({ metric: this.metric, log: this.isLog ? "1" : null, smooth: this.smoothness === null ? null : String(this.smoothness) });
    this.draw();
  }

  /** Show these runs, in this order; each is followed while it is shown. */
  show(names) {
    this.shown = names;
    if (this.commandOf) this.element.command.setText(names.length ? this.commandOf(names) : null);
    for (const name of names) {
      if (this.eventLogs.has(name)) continue;
      const eventLog = new EventLog(name);
      this.eventLogs.set(name, eventLog);
      this.follow(eventLog);
    }
    this.draw();
  }

  async follow(eventLog) {
    let resting = 0;
    await poll(async () => {
      if (!this.shown.includes(eventLog.name)) return;
      if (!eventLog.isLive && eventLog.status !== null && ++resting % SECONDS_AT_REST) return;
      if (await eventLog.follow(this.signal)) {
        this.onStatus(eventLog);
        this.draw();
      }
    }, SECONDS, this.signal).catch((error) => {
      if (this.signal.aborted) return;
      this.eventLogs.delete(eventLog.name); // it was removed or cannot be read; the others stay
      this.shown = this.shown.filter((name) => name !== eventLog.name);
      if (this.shown.length) this.draw();
      else this.body.replaceChildren(empty("No curves", error.message));
    });
  }

  draw() {
    if (this.isDue || this.signal.aborted) return;
    this.isDue = true;
    requestAnimationFrame(() => { this.isDue = false; this.drawNow(); });
  }

  drawNow() {
    if (this.signal.aborted) return;
    const eventLogs = this.shown.map((name) => this.eventLogs.get(name));
    const names = [...new Set(eventLogs.flatMap((eventLog) => eventLog.metrics()))];
    this.offer(names);
    if (!names.length) {
      if (!this.shown.length) this.body.replaceChildren(empty("No run is selected", "Select runs in the table to overlay their curves."));
      else if (eventLogs.every((eventLog) => eventLog.status !== null)) {
        this.body.replaceChildren(empty("No points yet", "They appear with the first logged step."));
      }
      return;
    }
    let strongest = 0;
    const series = eventLogs.map((eventLog) => {
      const index = this.colourOf(eventLog.name);
      const { training, validation } = eventLog.curve(this.metric);
      const usable = this.isLog ? training.filter(([, value]) => value > 0) : training;
      const strength = this.smoothness ?? (usable.length < SMOOTHED_POINTS ? 0 : SMOOTHNESS);
      strongest = Math.max(strongest, strength);
      const values = smoothed(usable.map(([, value]) => value), strength);
      return {
        name: eventLog.name, colour: seriesColour(index), dash: seriesDash(index), raw: strength ? usable : null,
        points: usable.map(([step], at) => [step, values[at]]), dots: this.isLog ? validation.filter(([, value]) => value > 0) : validation,
      };
    });
    if (this.smoothness === null) this.slider.value = strongest;
    if (!this.chart.element.isConnected) this.body.replaceChildren(this.chart.element, this.legend);
    this.legend.replaceChildren(...eventLogs.map(({ name }) => make("li", { data: { run: name } }, swatch(this.colourOf(name)), name)),
      make("li.muted", {}, strongest ? "line: training, smoothed above the raw values · rings: validation" : "line: training · rings: validation"), ...this.lossNote());
    this.chart.show(series, { isLog: this.isLog, y: words(this.metric), revision: `${this.metric}${this.isLog}` });
  }

  /** Return a note if the training loss of a shown run includes label smoothing, which validation does not. */
  lossNote() {
    if (this.metric !== "loss" || !this.shown.some((name) => this.smoothing(name) > 0)) return [];
    return [make("li.muted.loss-note", {}, "The training loss includes training.label_smoothing and the validation loss does not, so their heights cannot be compared.")];
  }

  offer(names) {
    const order = [...names].sort((first, second) => Number(second === "loss") - Number(first === "loss"));
    if (order.join() === this.offered || !order.length) return;
    this.offered = order.join();
    if (!order.includes(this.metric)) this.metric = order[0];
    this.metrics.replaceChildren(...order.map((name) => make("option", { value: name, selected: name === this.metric }, words(name))));
  }
}
