// Hints: attention rollout and the logit lens, computed on request and labelled as hints.

import { ask, path, stoppable } from "./api.js";
import { tableFigure } from "./charts.js";
import { button, make, measure } from "./dom.js";
import { StudioMaps } from "./maps.js";
import { figureFiles, panel } from "./panel.js";
import { remember } from "./route.js";
import { failure, working } from "./states.js";
import { makeDetail } from "./subject.js";

const ALTERNATIVES = 5;

const ROLLOUT = "The product of all layers, each an average of its heads and the residual connection. It assumes that only attention moves information.";
const LENS = "The prediction after each layer, as if the model ended there. The output head is applied to an earlier layer.";

export class HintPanel {
  constructor(run, request, params, signal) {
    Object.assign(this, { run, request, params, signal });
    // The lens needs the trained model's own output: the untrained control and other beams have none.
    const isPlain = !request.untrained && request.node === null;
    this.kinds = { rollout: ["Attention rollout", () => this.rollout()], ...(isPlain ? { lens: ["Logit lens", () => this.lens()] } : {}) };
    this.buttons = Object.fromEntries(Object.entries(this.kinds).map(([kind, [title]]) =>
      [kind, button(title, () => this.choose(kind), { "aria-pressed": "false", data: { hint: kind } })]));
    this.shown = make("div.hint");
    this.element = panel("Hints", { trust: "hint", about: "Summaries of all layers. Both can mislead, so test what they suggest." },
      make("div.actions", {}, ...Object.values(this.buttons)), this.shown);
    const asked = params.get("hint");
    if (this.kinds[asked]) this.choose(asked);
  }

  async choose(kind) {
    this.stop?.();
    this.chosen = this.chosen === kind ? null : kind; // a second press hides it
    remember({ hint: this.chosen });
    for (const [name, of] of Object.entries(this.buttons)) of.setAttribute("aria-pressed", String(name === this.chosen));
    this.shown.replaceChildren();
    if (!this.chosen) return;
    const { signal, stop } = stoppable(this.signal);
    Object.assign(this, { stop, asking: signal });
    this.shown.append(working("Running the model…"));
    try {
      const made = await this.kinds[kind][1]();
      if (!signal.aborted) this.shown.replaceChildren(made);
    } catch (error) {
      if (!signal.aborted) this.shown.replaceChildren(failure(error));
    }
  }

  async rollout() {
    const source = await StudioMaps.take(this.run, { ...this.request, rollout: true }, this.asking);
    const asked = this.params.get("site"), names = Object.keys(source.sites);
    const detail = makeDetail(source, this.asking, { tallest: () => Math.max(240, window.innerHeight * 0.45) });
    const pick = names.map((name) => button(source.sites[name].name.split(",")[0], () => choose(name), { className: "quiet", "aria-pressed": "false" }));
    const choose = (name) => {
      pick.forEach((of, index) => of.setAttribute("aria-pressed", String(names[index] === name)));
      detail.choose(name, 0, 0);
    };
    const made = panel("Attention rollout", { trust: "hint", about: ROLLOUT, files: source.files(() => detail.chosen), name: `${this.run}-rollout`, command: source.reply.command },
      names.length > 1 ? make("div.actions", {}, ...pick) : null, detail.element);
    choose(names.includes(asked) ? asked : names.at(-1));
    return made;
  }

  async lens() {
    const { input, checkpoint } = this.request;
    const lens = await ask(`runs/${path(this.run)}/lens`, { body: { input, checkpoint, alternatives: ALTERNATIVES }, signal: this.asking });
    const best = (layer, index) => lens.guesses[layer][index][0];
    const head = ["", ...lens.layers.map((layer) => (layer === 0 ? "embedding" : layer === lens.layers.length - 1 ? "output" : `after layer ${layer - 1}`))];
    const rows = [head, ...lens.positions.map((name, index) => [name, ...lens.layers.map((_, layer) => `${best(layer, index).token} ${best(layer, index).probability.toFixed(2)}`)])];
    const table = [["position", "token", "layers", "rank", "guess", "probability"],
      ...lens.guesses.flatMap((ofLayer, layer) => ofLayer.flatMap((guesses, index) =>
        guesses.map(({ token, probability }, rank) => [index, lens.positions[index], lens.layers[layer], rank + 1, token, probability])))];
    const cell = (layer, index) => {
      const { token, probability } = best(layer, index);
      const title = lens.guesses[layer][index].map((of) => `${of.token || "∅"} ${measure(of.probability)}`).join("\n");
      const made = make(`td.guess${token === lens.outputs[index] ? ".is-output" : ""}`, { title }, token || "∅", make("span.note", {}, probability.toFixed(2)));
      made.style.setProperty("--sure", String(probability));
      return made;
    };
    return panel("Logit lens", { trust: "hint", about: LENS, name: `${this.run}-lens`, command: lens.command, files: figureFiles(() => tableFigure(rows), () => table) },
      make("div.scroll.tall", {}, make("table.lens", {},
        make("thead", {}, make("tr", {}, head.map((name) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, lens.positions.map((name, index) => make("tr", {}, make("th", { scope: "row" }, name), lens.layers.map((_, layer) => cell(layer, index))))))));
  }
}
