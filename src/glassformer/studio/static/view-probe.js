// View that decodes one input step by step: the output, the alternatives per step, attention, and the beam search.

import { ask, path } from "./api.js";
import { bars } from "./charts.js";
import { button, choice, field, make, measure } from "./dom.js";
import { StudioMaps } from "./maps.js";
import { figureFiles, inputText, panel } from "./panel.js";
import { go, here, link, remember, wholeNumber } from "./route.js";
import { empty, fill, inputWarning, working } from "./states.js";
import { AttentionRow } from "./strip.js";
import { goIfAccepted, loadRun, requestOf, runNames, subjectBar } from "./subject.js";
import { beamTree, treeRows } from "./tree.js";

const ALTERNATIVES = 6;

export async function showProbe(root, { name, params, signal }) {
  const [about, runs] = await Promise.all([loadRun(name, signal), runNames(signal)]);
  const kinds = about.decoding ?? [], address = `runs/${path(name)}/trace`;
  const decoding = choice([["", "as evaluated"], ...kinds.map((kind) => [kind, kind])], params.get("decoding") ?? "", () => bar.requestSubmit());
  const bar = subjectBar({
    about, runs, params, submit: "Run", extra: kinds.length ? [field("Decoding", decoding)] : [],
    onRun: (run) => go("probe", run), onSubmit: (asked) => goIfAccepted("probe", name, { ...asked, decoding: decoding.value }, {
      requests: (of) => [[address, traceRequest(of)]], body, shown: params.get("input"), signal,
    }),
  });
  const body = make("div.result");
  root.replaceChildren(make("h1.unseen", {}, "Probe"), bar, body);
  await fill(body, working("Running the model…"), async () => {
    const request = traceRequest(params);
    const trace = await ask(address, { body: request, signal });
    return new Probe(name, trace, request, params, signal).element;
  }, signal);
}

function traceRequest(params) {
  const { input, checkpoint, decoding } = requestOf(params);
  return { input, checkpoint, decoding, alternatives: ALTERNATIVES };
}

class Probe {
  constructor(name, trace, request, params, signal) {
    Object.assign(this, { name, trace, request, signal, figure: null });
    this.step = Math.min(wholeNumber(params, "step", 0), Math.max(trace.steps.length - 1, 0));
    this.chips = make("div.steps", { role: "listbox", "aria-label": "Steps of the output", "aria-orientation": "horizontal" });
    this.alternatives = make("div");
    this.where = make("p.note", { role: "status" });
    this.tree = make("div.scroll.tree");
    this.row = new AttentionRow(signal);
    this.slider = make("input", { type: "range", min: 0, max: Math.max(trace.steps.length - 1, 0), value: this.step, "aria-label": "Step", oninput: () => this.go(Number(this.slider.value)) });
    const rows = () => [["step", "token", "probability"], ...trace.steps.flatMap((step) => step.alternatives.map((of) => [step.step, of.token, of.probability]))];
    const walk = panel("Step by step", { trust: "fact", name: `${name}-steps`, command: trace.command, files: figureFiles(() => this.figure, rows),
      tools: [button("Back", () => this.go(this.step - 1), { className: "quiet" }), button("Next", () => this.go(this.step + 1), { className: "quiet" })] },
    this.chips, this.slider, this.where, make("div.walk", {}, make("div", {}, make("h3", {}, "Alternatives"), this.alternatives), make("div", {}, make("h3", {}, "Attention"), this.row.element)));
    this.element = make("div.probe", {}, this.outputsPanel(), trace.steps.length ? walk : null, this.treePanel());
    document.addEventListener("keydown", (event) => {
      if (event.target.closest?.("input, select, textarea, .map-canvas, dialog")) return;
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) { this.go(this.step + by); event.preventDefault(); }
    }, { signal });
    this.takeMaps();
    this.show();
  }

  outputsPanel() {
    const { outputs } = this.trace;
    let figure = null;
    const made = panel("Output", { trust: "fact", name: `${this.name}-outputs`, command: this.trace.command,
      files: figureFiles(() => figure, () => [["output", "probability"], ...outputs.map((of) => [of.output, of.probability])]) });
    if (!outputs.length) {
      made.querySelector("header").after(empty("No output", "The model generated no output."));
      return made;
    }
    const [best, ...others] = outputs;
    figure = bars(outputs.map((of, index) => ({ label: of.output || "∅", value: of.probability, text: share(of.probability), isChosen: index === 0 })), { width: 380, isStacked: true, title: "outputs" });
    made.querySelector("header").after(make("div.output", {}, inputWarning(this.trace.warning),
      make("p.mono.muted", {}, this.trace.attention ? inputText(this.trace.attention) : this.trace.input.join(" ")),
      make("p.best", { role: "status" }, best.output || "∅"),
      make("p.note", {}, best.probability === null ? "" : `probability ${share(best.probability)}`)),
    ...(others.length ? [make("h3", {}, "All outputs"), figure] : []));
    return made;
  }

  treePanel() {
    const nodes = this.trace.tree?.nodes ?? [];
    if (!nodes.length) return null;
    let svg = null;
    const made = panel(nodes.length > this.trace.steps.length ? "Beam search" : "Search", { trust: "fact", name: `${this.name}-tree`, command: this.trace.command,
      about: "Each column is a step. Solid nodes belong to the output, dashed nodes were dropped. The number is the total log-probability so far.",
      files: figureFiles(() => svg, () => treeRows(nodes)) }, this.tree);
    const chosen = make("p.note", { role: "status" }, "Click a node to see its attention.");
    this.tree.after(chosen);
    this.drawTree = () => {
      svg = beamTree(nodes, this.step, (node) => { this.go(node.step); this.describeNode(chosen, nodes, node); });
      this.tree.replaceChildren(svg);
      const current = svg.querySelector(".is-here");
      if (current) this.tree.scrollLeft = Math.max(0, Number(current.dataset.x) - this.tree.clientWidth / 2);
    };
    return made;
  }

  /** Describe a node, with a link to its maps. */
  describeNode(root, nodes, node) {
    const tokens = [];
    for (let at = node; at; at = nodes[at.parent]) tokens.unshift(at.token);
    const { input, checkpoint, decoding } = this.request;
    const target = link("inspect", this.name, { input, checkpoint, decoding: decoding?.kind, node: String(node.id) });
    root.replaceChildren(`${node.state}: “${tokens.join(" ")}” `, make("a", { href: target }, "Inspect this node"));
  }

  async takeMaps() {
    const { input, checkpoint, decoding } = this.request;
    // An empty decoding is the run's own; with it, the maps cover the generated tokens.
    const request = { input, checkpoint, decoding: this.trace.tree ? decoding ?? {} : null };
    try {
      if (this.trace.map_error) throw this.trace.map_error;
      const source = this.trace.attention
        ? new StudioMaps(this.name, request, this.trace.attention, this.signal) : await StudioMaps.take(this.name, request, this.signal);
      await this.row.take(source, here().params);
      this.row.show(this.step);
    } catch (error) {
      if (!this.signal.aborted) this.row.fail(error);
    }
  }

  go(step) {
    this.step = Math.min(Math.max(step, 0), Math.max(this.trace.steps.length - 1, 0));
    remember({ step: String(this.step) });
    this.show();
  }

  show() {
    const { steps } = this.trace;
    this.slider.value = this.step;
    this.chips.replaceChildren(...steps.map((step, index) => {
      const chip = button(step.chosen || "∅", () => this.go(index), { className: "step-chip", role: "option", "aria-selected": String(index === this.step), title: `step ${index}: ${share(step.probability)}` });
      chip.style.setProperty("--sure", String(step.probability ?? 1));
      return chip;
    }));
    this.chips.children[this.step]?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
    const now = steps[this.step];
    if (now) {
      this.where.textContent = `step ${this.step + 1} of ${steps.length}: “${now.chosen}”${now.probability === null ? "" : ` with probability ${share(now.probability)}`}`;
      this.figure = bars(now.alternatives.map((of) => ({ label: of.token || "∅", value: of.probability, text: share(of.probability), isChosen: of.token === now.chosen })), { width: 360, label: 110, title: "alternatives" });
      this.alternatives.replaceChildren(this.figure);
    }
    this.drawTree?.();
    this.row.show(this.step);
  }
}

const share = (probability) => (probability === null || probability === undefined ? "–" : probability >= 0.0005 ? `${(100 * probability).toFixed(1)} %` : measure(probability));
