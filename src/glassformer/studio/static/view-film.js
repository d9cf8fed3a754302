// View of a training as a film: one slider moves map, head scores and loss through the checkpoints.

import { ask, path } from "./api.js";
import { Chart, seriesColour } from "./curves.js";
import { button, choice, field, make, number } from "./dom.js";
import { StudioMaps } from "./maps.js";
import { panel, reportCommand } from "./panel.js";
import { go, here, remember, wholeNumber } from "./route.js";
import { empty, failure, fill, working } from "./states.js";
import { chosenIn, goIfAccepted, loadRun, listenToKeys, makeDetail, runNames, subjectBar } from "./subject.js";

const PLAY_EVERY = 700;
const COMMAND = "glassformer train reversal inspection.probe_heads=true inspection.keep_snapshots=true";

export async function showFilm(root, { name, params, studio, signal }) {
  const [about, runs] = await Promise.all([loadRun(name, signal), runNames(signal)]);
  const bar = subjectBar({
    about, runs, params, hasCheckpoint: false, submit: "Show",
    onRun: (run) => go("film", run),
    onSubmit: (asked) => {
      const kept = Object.fromEntries(["site", "layer", "head", "step"].map((key) => [key, here().params.get(key)]));
      goIfAccepted("film", name, { ...asked, ...kept }, {
        requests: (of) => (shown ? [[`runs/${path(name)}/attention`, mapRequest(of.get("input"), shown.checkpoint)]] : []), body, shown: params.get("input"), signal,
      });
    },
  });
  let shown = null;
  const body = make("div.result");
  root.replaceChildren(make("h1.unseen", {}, "Film"), bar, body);
  await fill(body, working("Looking for checkpoints…"), async () => {
    const film = await ask(`runs/${path(name)}/film`, { signal });
    if (!film.checkpoints.length) {
      return empty("No checkpoints to show", "A film needs checkpoints from the whole training. These options keep them:", make("code", {}, COMMAND));
    }
    shown = new Film(name, film, about.command, params, studio, signal);
    return shown.element;
  }, signal);
}

const mapRequest = (input, checkpoint) => ({ input: input || null, checkpoint: checkpoint.name });

class Film {
  constructor(name, film, command, params, studio, signal) {
    Object.assign(this, { name, film, signal, sources: new Map(), input: params.get("input") || null });
    const last = film.checkpoints.length - 1;
    const asked = film.checkpoints.findIndex(({ step }) => step === wholeNumber(params, "step"));
    this.at = asked < 0 ? last : asked;
    this.position = make("output.film-step", {});
    this.slider = make("input", { type: "range", min: 0, max: last, value: this.at, "aria-label": "Checkpoint", oninput: () => { this.pause(); this.go(Number(this.slider.value)); } });
    this.play = button("Play", () => this.toggle(), { className: "primary", "aria-keyshortcuts": "p" });
    this.loss = new Chart({ height: 200, label: "loss curve" });
    this.scores = new Chart({ height: 240, label: "head scores" });
    this.patterns = choice([], "", (value) => { this.pattern = value; remember({ pattern: value }); this.drawScores(); });
    this.pattern = params.get("pattern");
    this.mapBody = make("div", {}, working("Running the model at this checkpoint…"));
    this.scoreNow = make("p.note", { role: "status" });
    this.map = panel("Map", { trust: "fact", name: `${name}-film`, files: {
      png: () => this.file("png"), svg: () => this.file("svg"), csv: () => this.file("csv") } }, this.mapBody, make("p.caption", {}, studio.caption));
    const hasScores = film.scores.length > 0;
    this.element = make("div", {},
      make("div.film-bar", {}, this.play, this.slider, this.position),
      last === 0 ? make("p.note", {}, "This run has one checkpoint. This option keeps more of them: ", make("code", {}, "inspection.keep_snapshots=true")) : null,
      make("div.film", {}, this.map, make("div.side", {},
        panel("Loss", { trust: "fact", files: this.loss.files(), name: `${name}-loss`, command: reportCommand(studio, [name]) }, this.loss.element,
          film.scores.some((event) => event.repeated_loss) ? make("p.note", {}, "The second line is the loss of the second half of random tokens that repeat.") : null),
        hasScores
          ? panel("Head scores", { trust: "fact", files: this.scores.files(), name: `${name}-head-scores`, command, tools: [field("Pattern", this.patterns, "inline")] }, this.scores.element, this.scoreNow)
          : panel("Head scores", {}, empty("This run has no head scores", "This option records them during training:", make("code", {}, "inspection.probe_heads=true"))))));
    signal.addEventListener("abort", () => { this.pause(); this.loss.close(); this.scores.close(); }, { once: true });
    document.addEventListener("keydown", (event) => {
      if (event.target.closest?.("input:not([type=range]), select, textarea, dialog")) return;
      if (event.key === "p") this.toggle();
    }, { signal });
    listenToKeys(() => this.detail, signal);
    requestAnimationFrame(() => this.go(this.at));
  }

  get checkpoint() {
    return this.film.checkpoints[this.at];
  }

  async file(format) {
    return (await this.source(this.at)).files(() => this.detail.chosen)[format]();
  }

  source(at) {
    const { name } = this.film.checkpoints[at];
    if (!this.sources.has(name)) {
      const asked = StudioMaps.take(this.name, mapRequest(this.input, this.film.checkpoints[at]), this.signal);
      asked.catch(() => this.sources.delete(name));
      this.sources.set(name, asked);
    }
    return this.sources.get(name);
  }

  async go(at) {
    this.at = at;
    this.slider.value = at;
    const { step } = this.checkpoint;
    this.position.textContent = `step ${number(step)} · ${at + 1} of ${this.film.checkpoints.length}`;
    this.slider.setAttribute("aria-valuetext", this.position.textContent);
    remember({ step: String(step) });
    this.drawLoss();
    this.drawScores();
    try {
      const source = await this.source(at);
      if (this.at !== at || this.signal.aborted) return;
      await this.showMap(source);
      if (at + 1 < this.film.checkpoints.length && this.timer) this.source(at + 1).catch(() => {});
    } catch (error) {
      if (!this.signal.aborted && this.at === at) { this.pause(); this.mapBody.replaceChildren(failure(error)); this.detail = null; }
    }
  }

  async showMap(source) {
    if (!this.detail) {
      this.detail = makeDetail(source, this.signal, {
        tallest: () => Math.max(300, window.innerHeight * 0.56),
        onChoose: (site, layer, head) => this.chosen(site, layer, head),
      });
      this.where = make("div.row-controls");
      this.mapBody.replaceChildren(this.where, this.detail.element);
      await this.detail.choose(...chosenIn(source.sites, here().params));
    } else {
      if (!this.detail.element.isConnected) this.mapBody.replaceChildren(this.where, this.detail.element);
      await this.detail.replace(source);
    }
    this.map.command.setText(source.reply.command);
  }

  chosen(name, layer, head) {
    const { sites } = this.detail.source, site = sites[name];
    remember({ site: name, layer: String(site.layers[layer]), head: String(site.heads[head]) });
    const pick = (list, at, act, label) => field(label, choice(list.map((of, number) => [String(number), String(of)]), String(at), (value) => act(Number(value))), "inline");
    this.where.replaceChildren(
      field("Maps", choice(Object.entries(sites).map(([key, of]) => [key, of.name]), name, (value) => this.detail.choose(value, 0, 0)), "inline"),
      pick(site.layers, layer, (value) => this.detail.choose(name, value, head), "Layer"), pick(site.heads, head, (value) => this.detail.choose(name, layer, value), "Head"));
    this.drawScores();
  }

  drawLoss() {
    const series = [{ name: "loss", colour: seriesColour(0), points: this.film.loss }];
    // A model that predicts next tokens: an induction head makes the second half of repeated tokens predictable.
    const repeated = this.film.scores.filter((event) => event.repeated_loss).map((event) => [event.step, event.repeated_loss.second_half]);
    if (repeated.length) series.push({ name: "repeated tokens", colour: seriesColour(1), points: repeated });
    this.loss.show(series, { cursor: this.checkpoint.step, y: "loss" });
  }

  /** Draw the score of each head for one attention pattern over the training steps, with the chosen head highlighted. */
  drawScores() {
    if (!this.film.scores.length || !this.detail?.chosen || !this.detail.site) return;
    const [name, row, column] = this.detail.chosen, site = this.detail.site;
    const patterns = Object.keys(this.film.scores[0].scores[name] ?? {});
    if (!patterns.length) return this.scoreNow.replaceChildren("No scores were recorded for these maps.");
    if (!patterns.includes(this.pattern)) this.pattern = this.strongest(name, patterns, site.layers[row], site.heads[column]);
    this.patterns.replaceChildren(...patterns.map((of) => make("option", { value: of, selected: of === this.pattern }, of)));
    const series = [];
    site.layers.forEach((layer) => site.heads.forEach((head) => {
      const isChosen = layer === site.layers[row] && head === site.heads[column];
      const points = this.film.scores.map((event) => [event.step, event.scores[name]?.[this.pattern]?.[layer]?.[head] ?? null]).filter(([, value]) => value !== null);
      series.push({ name: `layer ${layer}, head ${head}`, colour: seriesColour(isChosen ? 1 : 0), points, isQuiet: !isChosen, width: isChosen ? 3 : 1.5 });
      if (isChosen) this.describe(points);
    }));
    this.scores.show(series.sort((first, second) => Number(second.isQuiet) - Number(first.isQuiet)), { cursor: this.checkpoint.step, y: `${this.pattern} above uniform` });
  }

  strongest(name, patterns, layer, head) {
    const { scores } = this.film.scores.at(-1);
    const value = (pattern) => scores[name][pattern]?.[layer]?.[head] ?? -1;
    return patterns.reduce((best, pattern) => (value(pattern) > value(best) ? pattern : best));
  }

  describe(points) {
    const { step } = this.checkpoint;
    const near = points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best), points[0]);
    this.scoreNow.textContent = near ? `this head at step ${number(near[0])}: ${near[1].toFixed(3)}${this.scores.series.length > 1 ? " · others are faint" : ""}` : "";
  }

  toggle() {
    if (this.timer) return this.pause();
    this.play.textContent = "Pause";
    if (this.at === this.film.checkpoints.length - 1) this.at = -1;
    const next = async () => {
      if (this.at >= this.film.checkpoints.length - 1) return this.pause();
      await this.go(this.at + 1);
      if (this.timer) this.timer = setTimeout(next, PLAY_EVERY);
    };
    this.timer = setTimeout(next, 0);
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
  }
}
