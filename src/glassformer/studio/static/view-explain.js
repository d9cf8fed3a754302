// View that asks what carries an output: attributions of tokens, activation patching, word alignment, probes.

import { ask, path, stoppable } from "./api.js";
import { bars } from "./charts.js";
import { button, change, choice, field, make, measure } from "./dom.js";
import { alignmentLines, colouredTokens, EffectGrid, signedBars } from "./figures.js";
import { figureFiles, panel, trust } from "./panel.js";
import { go, here, remember, wholeNumber } from "./route.js";
import { failure, inputWarning, working } from "./states.js";
import { goIfAccepted, loadRun, requestOf, runNames, subjectBar } from "./subject.js";

const METHODS = [["integrated-gradients", "integrated gradients"], ["gradient-input", "gradient × input"], ["occlusion", "occlusion"], ["logits", "heads and layers (logits)"]];
const PARTS = [["residual", "residual stream", ["*.embedding", "*.residual_post", "encoder.output"]], ["heads", "heads", ["*.heads", "*.cross_heads"]], ["feed-forward", "feed-forward", ["*.feed_forward"]]];
const PROBE_EXAMPLES = 200;
const MOST_BARS = 40;

export async function showExplain(root, { name, params, signal }) {
  const [about, runs] = await Promise.all([loadRun(name, signal), runNames(signal)]);
  const body = make("div.result");
  const bar = subjectBar({
    about, runs, params, onRun: (run) => go("explain", run),
    onSubmit: (asked) => goIfAccepted("explain", name, { ...chosen(), ...asked }, {
      requests: (of) => [[`runs/${path(name)}/attribute`, attributeRequest(of, about)]], body, shown: params.get("input"), signal,
    }),
  });
  const base = { name, about, request: subjectOf(params), params, signal };
  const panels = [new Attributions(base), new Patching(base), ...(about.has_source ? [new Alignment(base)] : []), new Probes(base)];
  body.append(make("div.explain", {}, panels.map((of) => of.element)));
  root.replaceChildren(make("h1.unseen", {}, "Explain"), bar, body);
  // One after another: the model runs one job at a time, and the first panel should appear first.
  for (const of of panels) await of.start();
}

/** Return the choices that also make sense for another input. */
const chosen = () => Object.fromEntries([...here().params].filter(([key]) => ["method", "part", "noising", "label"].includes(key)));

function subjectOf(params) {
  const { input, checkpoint } = requestOf(params);
  return { input, checkpoint };
}

function attributeRequest(params, about) {
  const method = params.get("method") ?? METHODS[0][0];
  return { ...subjectOf(params), method, output: wholeNumber(params, "output"), rather_than: params.get("rather") || null, matrix: Boolean(about.has_source) && method !== "logits" };
}

/** Panel whose content is computed by the server on request, with its time, a button to stop, and errors in place. */
class AskedPanel {
  constructor(base, title, options, ...controls) {
    Object.assign(this, base);
    this.body = make("div.asked");
    this.badge = trust(options.trust);
    this.figure = null;
    this.element = panel(title, { ...options, trust: null, name: `${this.name}-${options.file}`, files: figureFiles(() => this.figure, () => this.rows()) }, make("div.controls", {}, controls), this.body);
    this.element.querySelector("h2").after(this.badge);
  }

  async ask(kind, body, waiting) {
    this.stop?.();
    const { signal, stop } = stoppable(this.signal);
    this.stop = stop;
    this.body.replaceChildren(working(waiting, () => { stop(); this.offer(); }));
    try {
      const reply = await ask(`runs/${path(this.name)}/${kind}`, { body, signal });
      if (signal.aborted) return;
      this.element.command.setText(reply.command ?? null);
      this.body.replaceChildren(...this.shown(reply).filter(Boolean));
    } catch (error) {
      if (!signal.aborted) this.body.replaceChildren(failure(error, error.name === "Refused" && error.status < 500 ? null : () => this.start()));
    }
  }

  offer() {
    this.body.replaceChildren(make("div.actions", {}, button("Compute", () => this.start())));
  }

  /** Show a check of the method: a sentence, and its numbers. */
  check(text) {
    return make("p.note.check", {}, text);
  }
}

class Attributions extends AskedPanel {
  constructor(base) {
    const { params } = base;
    const method = choice(METHODS, params.get("method") ?? METHODS[0][0], (value) => { remember({ method: value }); this.start(); });
    const output = make("input", { type: "text", inputMode: "numeric", value: params.get("output") ?? "", placeholder: "the first", size: 8, onchange: () => { remember({ output: output.value }); this.start(); } });
    const other = make("input", { type: "text", value: params.get("rather") ?? "", placeholder: "the second most likely", onchange: () => { remember({ rather: other.value }); this.start(); } });
    super(base, "Which input tokens carry the output?", { trust: "hint", file: "attribution", about: "A token with a positive value speaks for the output, one with a negative value for the other one." },
      field("Method", method, "inline"), field("Output position", output, "inline"), field("Rather than", other, "inline"));
    Object.assign(this, { method, output, other, document: null });
  }

  async start() {
    const params = new URLSearchParams({ ...Object.fromEntries(this.params), method: this.method.value, output: this.output.value, rather: this.other.value });
    await this.ask("attribute", attributeRequest(params, this.about), "Attributing the output…");
  }

  shown(document) {
    this.document = document;
    this.badge.replaceWith(this.badge = trust(document.trust));
    const { tokens, values } = document;
    this.figure = signedBars(this.largest().map(([label, value]) => ({ label, value })), { title: document.contrast, label: 150 });
    const isOfParts = document.method === "logits";
    return [
      inputWarning(document.warning),
      make("p.reading", {}, document.contrast),
      document.outputs ? this.matrix(document) : null,
      isOfParts || document.outputs ? null : colouredTokens(tokens, values, { label: "Input tokens with their attribution" }),
      this.figure,
      this.check(`Check: the values sum to ${document.sum.toFixed(3)}; they should sum to ${(document.target_difference - (document.baseline_difference ?? 0)).toFixed(3)} (error ${measure(document.completeness_error)}).`),
      isOfParts ? null : this.check(`Faithfulness: removing the top tokens lowers the difference by ${document.comprehensiveness.toFixed(2)} (random order ${document.random_comprehensiveness.toFixed(2)}); keeping only them lowers it by ${document.sufficiency.toFixed(2)} (random order ${document.random_sufficiency.toFixed(2)}).`),
    ];
  }

  /** Make the strip of generated tokens; pointing at one colours the input tokens that it depends on. */
  matrix({ outputs, matrix, tokens }) {
    const of = make("div.of-output", { "aria-live": "polite" });
    const show = (index) => of.replaceChildren(make("p.note", {}, `what carries “${outputs[index]}”`), colouredTokens(tokens, matrix[index], { label: `Input tokens for ${outputs[index]}` }));
    show(0);
    const strengths = matrix.map((row) => Math.max(...row.map(Math.abs)));
    return make("div.generated", {}, make("h3", {}, "Generated tokens"), make("p.note", {}, "Point at a token to see what it depends on."),
      colouredTokens(outputs, strengths, { label: "Generated tokens", title: (index) => outputs[index], onPoint: show }), of);
  }

  largest() {
    const { tokens, values } = this.document;
    return tokens.map((token, index) => [`${token}`, values[index]]).sort((one, two) => Math.abs(two[1]) - Math.abs(one[1])).slice(0, MOST_BARS);
  }

  rows() {
    const { tokens, values, outputs, matrix } = this.document;
    return [["position", "token", "value", ...(outputs ?? [])], ...tokens.map((token, index) => [index, token, values[index], ...(matrix ?? []).map((row) => row[index])])];
  }
}

class Patching extends AskedPanel {
  constructor(base) {
    const { params } = base;
    const corrupted = make("input.mono", { type: "text", value: params.get("corrupted") ?? "", placeholder: "the input with one token changed", spellcheck: false, maxLength: 20_000, onchange: () => { remember({ corrupted: corrupted.value }); this.start(); } });
    const part = choice(PARTS.map(([key, text]) => [key, text]), params.get("part") ?? "residual", (value) => { remember({ part: value }); this.start(); });
    const noising = make("input", { type: "checkbox", checked: params.get("noising") === "1", onchange: () => { remember({ noising: noising.checked ? "1" : null }); this.start(); } });
    super(base, "Where does the model compute it?", { trust: "cause", file: "patching", about: "Each cell copies one activation from the input's pass into that of a corrupted input, and runs the rest of the model again. 1 restores the whole difference, 0 nothing." },
      field("Corrupted input", corrupted, "grow"), field("Copy", part, "inline"), field("Reverse (noising)", noising, "inline"));
    Object.assign(this, { corrupted, part, noising, document: null });
  }

  async start() {
    const [, , patterns] = PARTS.find(([key]) => key === this.part.value) ?? PARTS[0];
    await this.ask("patch", { ...this.request, corrupted: this.corrupted.value || null, sites: patterns, noising: this.noising.checked }, "Copying activations one at a time…");
  }

  shown(document) {
    this.document = document;
    const grids = groups(document).map(({ title, sites, columns }) => new EffectGrid({
      title, rows: sites, columns, values: sites.map((site) => document.grid[site]),
      describe: (row, column) => `${sites[row]}, ${columns[column]}: effect ${document.grid[sites[row]][column].toFixed(3)}${gradientOf(document, sites[row], column)}`,
    }));
    this.figure = grids[0]?.svg ?? null;
    const { clean_text: clean, corrupted_text: corrupted } = document;
    return [
      inputWarning(document.warning),
      make("p.reading", {}, make("span", {}, clean ?? ""), make("span.arrow", {}, "↔"), make("span", {}, corrupted ?? "")),
      make("p.note", {}, `${document.contrast}: ${document.clean.toFixed(2)} for the input, ${document.corrupted.toFixed(2)} for the corrupted one`),
      ...grids.map(({ element }) => element),
      this.check(`Check: everything copied gives ${document.everything.toFixed(3)} (1), nothing ${document.nothing.toFixed(3)} (0).`),
      document.untrained ? this.check(`Control: in the untrained model the difference between the inputs is ${(document.untrained.clean - document.untrained.corrupted).toFixed(3)}.`) : null,
      document.gradient_correlation === null ? null : this.check(`Hint: the gradient approximation correlates by ${document.gradient_correlation.toFixed(2)} with these effects.`),
    ];
  }

  rows() {
    return [["site", "cell", "label", "effect", "gradient"], ...this.document.sites.flatMap(({ name, labels }) =>
      this.document.grid[name].map((effect, index) => [name, index, labels[index], effect, this.document.gradient[name]?.[index] ?? null]))];
  }
}

/** Return the rows of sites that share their columns, as one grid each. */
function groups({ sites }) {
  const found = new Map();
  for (const { name, axis, labels } of sites) {
    const key = JSON.stringify([name.split(".")[0], axis, labels]);
    if (!found.has(key)) found.set(key, { title: `Effects by site and ${axis}, ${name.split(".")[0]}`, sites: [], columns: labels });
    found.get(key).sites.push(name);
  }
  return [...found.values()];
}

function gradientOf({ gradient }, site, column) {
  const value = gradient[site]?.[column];
  return value === undefined || value === null ? "" : ` (gradient approximation, a hint: ${value.toFixed(3)})`;
}

class Alignment extends AskedPanel {
  constructor(base) {
    super(base, "Which words belong together?", { trust: "fact", file: "alignment", about: "A line joins a generated word with the source word that the chosen cross-attention head reads most." });
    this.pair = null;
  }

  async start() {
    await this.ask("align", this.request, "Choosing a head on the validation set, and aligning…");
  }

  shown(document) {
    [this.pair] = document.links;
    this.figure = alignmentLines(this.pair);
    this.badge.replaceWith(this.badge = trust(document.trust));
    return [
      inputWarning(document.warning),
      make("div.scroll", {}, this.figure),
      this.check(`Layer ${document.layer}, head ${document.head}, weighted by ${document.weighting}; chosen by ${document.chosen_by}.`),
    ];
  }

  rows() {
    return [["source", "target", "source word", "target word"], ...this.pair.links.map(([from, to]) => [from, to, this.pair.source[from], this.pair.target[to]])];
  }
}

class Probes extends AskedPanel {
  constructor(base) {
    const names = Object.keys(base.about.labels ?? {});
    const label = choice(names.map((of) => [of, of]), base.params.get("label") ?? names[0], (value) => { remember({ label: value }); this.start(true); });
    super(base, "What can be read from each layer?", { trust: "fact", file: "probes", about: "A linear classifier reads a label from the states of a layer. A label that can be read is not always used." },
      field("Label", label, "inline"));
    Object.assign(this, { label, document: null });
  }

  /** Offer the probes, which take longer than the other panels. */
  async start(isAsked = this.params.get("label") !== null) {
    if (!isAsked) return this.offer();
    await this.ask("probe", { label: this.label.value, checkpoint: this.request.checkpoint, examples: PROBE_EXAMPLES }, "Fitting probes, with their controls…");
  }

  offer() {
    if (!this.label.value) return this.body.replaceChildren(make("p.note", {}, "The model could not be opened."));
    return this.body.replaceChildren(make("div.actions", {}, button(`Fit probes on ${PROBE_EXAMPLES} examples`, () => { remember({ label: this.label.value }); this.start(true); })));
  }

  shown(document) {
    this.document = document;
    const rows = bestRows(document.rows);
    this.figure = bars(rows.map((row) => ({
      label: row.position === null ? row.site : `${row.site} @${row.position}`, value: row.accuracy, interval: row.interval,
      mark: row.majority, other: row.untrained, dot: row.control, text: `${(100 * row.accuracy).toFixed(1)} %`,
    })), { width: 440, label: 190, value: 56, title: document.label });
    return [
      make("p.note", {}, `${document.label}: ${document.meaning}. Measured on ${document.examples} examples of ${document.split}.`),
      this.figure,
      make("div.note.bar-legend", {}, make("span.key-mark"), "most frequent label", make("span.key-other"), "untrained model", make("span.key-dot"), "control task"),
      removalTable(document.removals),
    ];
  }

  rows() {
    return [["site", "position", "accuracy", "low", "high", "control", "selectivity", "untrained", "majority"],
      ...this.document.rows.map((row) => [row.site, row.position, row.accuracy, ...row.interval, row.control, row.selectivity, row.untrained, row.majority])];
  }
}

/** Make a table of what happens to the loss if the directions that the probes found are removed. */
function removalTable(removals) {
  if (!removals.length) return null;
  return make("details", {}, make("summary", {}, trust("cause"), " Loss without the directions that the probes found"),
    make("div.scroll", {}, make("table", {},
      make("thead", {}, make("tr", {}, ["site", "loss before", "after", "random directions"].map((of, index) => make(`th${index ? ".number" : ""}`, { scope: "col" }, of)))),
      make("tbody", {}, removals.map((of) => make("tr", {}, make("th", { scope: "row" }, of.site),
        make("td.number", {}, measure(of.loss.before)), make("td.number", {}, measure(of.loss.after)), make("td.number", {}, change("loss", of.random_loss))))))));
}

/** Return one row per site: that of all positions together, else the most accurate position. */
function bestRows(rows) {
  const found = new Map();
  for (const row of rows) {
    const known = found.get(row.site);
    if (!known || row.position === null || (known.position !== null && row.accuracy > known.accuracy)) found.set(row.site, row);
  }
  return [...found.values()];
}

