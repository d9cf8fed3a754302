// The panel of curves: which metric, logarithmic or not, how smooth; several runs in one picture.

import { poll } from "./api.js";
import { Chart, seriesColour, smoothed } from "./curves.js";
import { choice, field, make, words } from "./dom.js";
import { panel } from "./panel.js";
import { Record } from "./record.js";
import { remember } from "./route.js";
import { empty, skeleton } from "./states.js";

const SECONDS = 1;
const SECONDS_AT_REST = 5;

export class CurvePanel {
  /** `onStatus(record)` hears of every run that has changed. */
  constructor(params, signal, { height = 320, title = "Curves", onStatus = () => {}, command = null, commandOf = null } = {}) {
    Object.assign(this, { signal, onStatus, commandOf, records: new Map(), shown: [] });
    this.metric = params.get("metric") ?? "loss";
    this.isLog = params.get("log") === "1";
    this.smoothness = Math.min(Math.max(Number(params.get("smooth") ?? 0.5) || 0, 0), 0.99);
    this.chart = new Chart({ height, label: "training curves" });
    this.legend = make("ul.legend");
    this.body = make("div", {}, skeleton(6, "Loading the curves"));
    this.metrics = choice([["loss", "loss"]], "loss", (value) => { this.metric = value; this.keep(); });
    const log = make("input", { type: "checkbox", checked: this.isLog, onchange: () => { this.isLog = log.checked; this.keep(); } });
    const smooth = make("input", {
      type: "range", min: 0, max: 0.99, step: 0.01, value: this.smoothness,
      oninput: () => { this.smoothness = Number(smooth.value); this.keep(); },
    });
    this.element = panel(title, { files: this.chart.files(), name: "curves", command, tools: [
      field("Metric", this.metrics, "inline"), field("Log axis", log, "inline"), field("Smoothing", smooth, "inline"),
    ] }, this.body);
    signal.addEventListener("abort", () => this.chart.close(), { once: true });
  }

  keep() {
    remember({ metric: this.metric, log: this.isLog ? "1" : null, smooth: String(this.smoothness) });
    this.draw();
  }

  /** These runs, in this order; each is followed while it is shown. */
  show(names) {
    this.shown = names;
    if (this.commandOf) this.element.command.say(names.length ? this.commandOf(names) : null);
    for (const name of names) {
      if (this.records.has(name)) continue;
      const record = new Record(name);
      this.records.set(name, record);
      this.follow(record);
    }
    this.draw();
  }

  async follow(record) {
    let resting = 0;
    await poll(async () => {
      if (!this.shown.includes(record.name)) return;
      if (!record.isLive && record.status !== null && ++resting % SECONDS_AT_REST) return;
      if (await record.follow(this.signal)) {
        this.onStatus(record);
        this.draw();
      }
    }, SECONDS, this.signal).catch((error) => {
      if (this.signal.aborted) return;
      this.records.delete(record.name); // it was removed, or cannot be read: the others stay
      this.shown = this.shown.filter((name) => name !== record.name);
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
    const records = this.shown.map((name) => this.records.get(name));
    const names = [...new Set(records.flatMap((record) => record.metrics()))];
    this.offer(names);
    if (!names.length) {
      if (!this.shown.length) this.body.replaceChildren(empty("No run is chosen", "Tick runs in the table to lay their curves over each other."));
      else if (records.every((record) => record.status !== null)) {
        this.body.replaceChildren(empty("No points yet", "The first ones come with the first logged step."));
      }
      return;
    }
    const series = records.map((record, place) => {
      const { training, validation } = record.curve(this.metric);
      const usable = this.isLog ? training.filter(([, value]) => value > 0) : training;
      const values = smoothed(usable.map(([, value]) => value), this.smoothness);
      return {
        name: record.name, colour: seriesColour(place), raw: this.smoothness ? usable : null,
        points: usable.map(([step], at) => [step, values[at]]), dots: this.isLog ? validation.filter(([, value]) => value > 0) : validation,
      };
    });
    if (!this.chart.element.isConnected) this.body.replaceChildren(this.chart.element, this.legend);
    this.legend.replaceChildren(...records.map((record, place) => this.entry(record, place)),
      make("li.muted", {}, "line: training, smoothed over the raw one · rings: validation"));
    this.chart.show(series, { isLog: this.isLog, y: words(this.metric), revision: `${this.metric}${this.isLog}` });
  }

  entry(record, place) {
    const swatch = make("span.swatch");
    swatch.style.background = seriesColour(place);
    return make("li", {}, swatch, record.name);
  }

  offer(names) {
    const order = [...names].sort((first, second) => Number(second === "loss") - Number(first === "loss"));
    if (order.join() === this.offered || !order.length) return;
    this.offered = order.join();
    if (!order.includes(this.metric)) this.metric = order[0];
    this.metrics.replaceChildren(...order.map((name) => make("option", { value: name, selected: name === this.metric }, words(name))));
  }
}
