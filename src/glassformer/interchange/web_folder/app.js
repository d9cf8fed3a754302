// Page of one exported model: an input, the model's output, and its attention. Text is inserted as text, never as markup.

import * as ort from "./ort/ort.wasm.min.mjs";
import { Model } from "./model.js";
import { axesOf, element, showGrid, showKeys } from "./overview.js";
import { readScale } from "./painting.js";
import { InputError } from "./text.js";
import { MapDetail } from "./viewer.js";

const BYTE_STEPS = 254;
const MOST_EXAMPLES = 4;
const MOST_CLASSES = 10;
const LONGEST_INPUT = 60;
const SITES = {
  encoder: { name: "encoder self-attention", axes: ["query token", "key token"] },
  decoder: { name: "decoder self-attention", axes: ["generated token", "previous token"] },
  cross: { name: "cross-attention", axes: ["generated token", "input token"] },
};

const HINTS = {
  text: () => "Type a text.",
  masked: ({ mask_name: name }) => `Write ${name} where the model should fill in a token.`,
  numbers: ({ categories, trained_length: length }) => `Type ${length} numbers from 0 to ${categories - 1}, as in the examples.`,
  symbols: () => "Type symbols of the training data.",
  expression: () => "Type one operation between two numbers, such as 4 + -11.",
  ids: () => "Type token ids, such as 3 1 4.",
};

const find = (selector) => document.querySelector(selector);

/** Read a file of this folder. */
export async function readFile(name) {
  const reply = await fetch(new URL(name, import.meta.url));
  if (!reply.ok) throw new Error(`${name} cannot be read (${reply.status}). Is the folder complete?`);
  return new Uint8Array(await reply.arrayBuffer());
}

/** Load the model of this folder. The runtime's own files are beside it, so nothing comes from elsewhere. */
export function loadModel() {
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
  return Model.load(ort, readFile);
}

/** Return descriptions of the maps and a function that paints them, as the viewer wants both. */
export function mapSource(model, scale, ids, answer, weights) {
  const { config } = model, generated = answer.generated ?? [];
  const own = (list) => list.map((id) => config.input_symbols[id] ?? String(id));
  const out = (list) => list.map((id) => config.output_symbols[id] ?? String(id));
  const inputs = own(ids), begin = model.output.begin;
  const isSingle = begin === undefined;
  const seen = isSingle ? own([...ids, ...generated.slice(0, -1)]) : inputs;
  const outputs = isSingle && generated.length ? [...ids.slice(1).map(() => ""), ...out(generated)]
    : model.output.kind === "labels" || model.output.kind === "filled" ? out(answer.tokens) : null;
  const labels = {
    encoder: { queries: seen, keys: seen, outputs },
    decoder: { queries: out(generated), keys: out([begin, ...generated.slice(0, -1)]), outputs: null },
    cross: { queries: out(generated), keys: inputs, outputs: null },
  };
  const sites = {};
  for (const [site, tensor] of Object.entries(weights)) {
    const [, layers, heads] = tensor.dims;
    sites[site] = {
      ...labels[site], name: isSingle ? "self-attention" : SITES[site].name, first_query: 0,
      query_axis: SITES[site].axes[0], key_axis: SITES[site].axes[1], is_cross: site === "cross",
      layers: Array.from({ length: layers }, (_, layer) => layer), heads: Array.from({ length: heads }, (_, head) => head),
      largest: tensor.data.reduce((most, weight) => Math.max(most, weight), 0), is_causal: config.causal_sites.includes(site),
    };
  }
  const cells = (site, layer, head) => {
    const { data, dims: [, , heads, queries, keys] } = weights[site];
    const start = (layer * heads + head) * queries * keys;
    return data.subarray(start, start + queries * keys);
  };
  return {
    sites, scale, hasMasked: config.causal_sites.length > 0,
    bytes: async (site, layer, head) => bytesOf(cells(site, layer, head), sites[site]),
    row: async (site, layer, head, query) => {
      const keys = sites[site].keys.length;
      return cells(site, layer, head).subarray(query * keys, (query + 1) * keys);
    },
  };
}

/** Return one byte per weight, as painting.js wants them; later keys are masked in causal attention. */
function bytesOf(weights, site) {
  const keys = site.keys.length;
  return Uint8Array.from(weights, (weight, cell) =>
    site.is_causal && cell % keys > Math.floor(cell / keys) ? 0 : 1 + Math.round(BYTE_STEPS * Math.sqrt(weight)));
}

class Page {
  constructor(config) {
    this.config = config;
    this.detail = null;
    this.isBusy = false;
    document.title = config.title;
    find("h1").textContent = config.title;
    find(".subtitle").textContent = config.subtitle;
    find("#hint").textContent = HINTS[config.input.kind](config.input);
    this.button = find("button[type=submit]");
    const input = find("#input");
    input.value = config.examples[0] ?? "";
    for (const text of config.examples.slice(0, MOST_EXAMPLES)) {
      const button = element(find("#examples"), "button", text);
      button.type = "button";
      button.addEventListener("click", () => { input.value = text; if (!this.isBusy && this.model) this.run(text); });
    }
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); find("form").requestSubmit(); }
    });
    find("form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.isBusy) this.isBusy = false; // the button says Stop
      else if (this.model) this.run(input.value);
    });
    showFooter(find("footer"), config);
  }

  async start() {
    this.scale = await readScale(this.config.scales);
    this.model = await loadModel();
    this.button.disabled = false;
    if (this.config.examples.length) await this.run(this.config.examples[0]);
    else this.say("Ready.");
  }

  say(text, isProblem = false) {
    find("#status").textContent = text;
    find("#status").className = isProblem ? "problem" : "";
  }

  async run(text) {
    this.isBusy = true;
    this.button.textContent = "Stop";
    const start = performance.now();
    this.say("Running …");
    try {
      const ids = this.model.text.read(text), warning = this.model.text.warning(text, ids);
      const answer = await this.model.predict(ids, async (output) => {
        this.showAnswer(ids, { output, warning });
        await new Promise((resolve) => setTimeout(resolve)); // lets the page repaint
        return this.isBusy;
      });
      this.showAnswer(ids, { ...answer, warning });
      this.last = text;
      await this.showMaps(ids, answer);
      this.say(`${ids.length} tokens read in ${((performance.now() - start) / 1000).toFixed(1)} s, in this browser.`);
    } catch (error) {
      if (!(error instanceof InputError)) console.error(error);
      const below = this.last === undefined ? "" : ` Below: the last result, for the input “${shortened(this.last)}”.`;
      this.say(`${error.message}${below}`, true);
    } finally {
      this.isBusy = false;
      this.button.textContent = "Run";
    }
  }

  showAnswer(ids, answer) {
    const section = find("#answer");
    section.hidden = false;
    section.replaceChildren();
    if (answer.warning) element(section, "p", `Warning: ${answer.warning}`, "problem").id = "warning";
    element(section, "h2", this.model.output.begin === undefined && this.model.generates ? "continuation" : "output");
    element(section, "p", answer.output, "output");
    if (answer.probabilities) this.showClasses(section, answer.probabilities);
    element(section, "p", "Tokens of the input, as the model reads them:", "note");
    const list = element(section, "ol", "", "tokens");
    for (const id of ids) element(list, "li", this.config.input_symbols[id] ?? String(id)).title = `token ${id}`;
  }

  showClasses(section, probabilities) {
    const table = element(section, "table", "", "classes");
    const order = probabilities.map((value, index) => [value, index]).sort((one, other) => other[0] - one[0] || one[1] - other[1]);
    for (const [value, index] of order.slice(0, MOST_CLASSES)) {
      const row = element(table, "tr");
      element(row, "td", this.model.output.symbols[index]);
      const meter = element(element(row, "td"), "meter");
      meter.value = value;
      meter.setAttribute("aria-label", `${(100 * value).toFixed(1)} %`);
      element(row, "td", `${(100 * value).toFixed(1)} %`);
    }
  }

  async showMaps(ids, answer) {
    const weights = await this.model.attention(ids, answer.generated);
    const source = mapSource(this.model, this.scale, ids, answer, weights);
    const root = find("#maps"), before = this.detail;
    const chosen = before?.chosen;
    before?.close();
    root.replaceChildren();
    const layout = element(root, "div", "", "layout");
    const detail = (this.detail = new MapDetail(source, { notes: ({ site }) => [axesOf(site)] }));
    const names = Object.keys(source.sites);
    if (names.some((name) => source.sites[name].layers.length * source.sites[name].heads.length > 1) || names.length > 1) {
      layout.classList.add("has-several");
      const overview = element(layout, "section");
      overview.setAttribute("aria-label", "all maps");
      for (const name of names) showGrid(overview, name, source, detail);
    }
    layout.append(detail.element);
    await detail.choose(...(chosen ?? [names.at(-1), 0, 0]));
  }
}

const shortened = (text) => (text.length <= LONGEST_INPUT ? text : `${text.slice(0, LONGEST_INPUT - 1)}…`);

function showFooter(footer, config) {
  element(footer, "p", config.caption, "caption");
  element(footer, "p", "The model runs in this browser. Nothing that you type leaves this page.");
  const checked = element(footer, "p");
  readFile("verification.json").then((bytes) => {
    const found = JSON.parse(new TextDecoder().decode(bytes));
    checked.textContent = `Checked at export with ${found.engine} ${found.version}, on ${found.examples} examples: `
      + `largest difference to Glassformer ${found.largest_difference.toExponential(1)}, `
      + `${(100 * found.same_outputs).toFixed(1)} % of the outputs identical.`;
  }).catch(() => {
    checked.textContent = "This folder has no verification.json: its outputs were not compared with Glassformer.";
  });
  showKeys(element(footer, "p"));
}

// The page itself holds the advice for file:// pages, for which browsers run no modules.
find("#status").textContent = "Loading the model …";
readFile("config.json")
  .then((bytes) => new Page(JSON.parse(new TextDecoder().decode(bytes))).start())
  .catch((error) => {
    console.error(error);
    find("#status").textContent = error.message;
    find("#status").className = "problem";
  });
