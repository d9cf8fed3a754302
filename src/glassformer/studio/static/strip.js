// Attention of one decoding step as strips of tokens, one strip per head.

import { choice, field, make } from "./dom.js";
import { currentScale } from "./maps.js";
import { onTheme, paint } from "./painting.js";
import { remember } from "./route.js";
import { chosenIn } from "./subject.js";
import { failure, skeleton } from "./states.js";

const MAX_TOKENS = 60;

export class AttentionRow {
  constructor(signal) {
    this.signal = signal;
    this.element = make("div.attention-row", {}, skeleton(3, "Loading the attention"));
    signal.addEventListener("abort", onTheme(() => this.show(this.step)), { once: true });
  }

  fail(error) {
    this.element.replaceChildren(failure(error));
  }

  async take(source, params) {
    this.source = source;
    const names = Object.keys(source.sites);
    // Cross-attention, if there is one, shows what a generated token reads from the input.
    const asked = params.get("site") ?? (source.sites.cross ? "cross" : names.at(-1));
    const wanted = new URLSearchParams(params);
    wanted.set("site", asked);
    if (params.get("layer") === null && source.sites[asked]) wanted.set("layer", source.sites[asked].layers.at(-1));
    this.chosen = chosenIn(source.sites, wanted);
    this.controls = make("div.row-controls");
    this.heads = make("div.heads");
    this.element.replaceChildren(this.controls, this.heads);
    this.control();
  }

  control() {
    const { sites } = this.source, [name, layer] = this.chosen;
    this.controls.replaceChildren(
      field("Maps", choice(Object.entries(sites).map(([key, site]) => [key, site.name]), name, (value) => this.choose(value, 0)), "inline"),
      field("Layer", choice(sites[name].layers.map((of, index) => [String(index), String(of)]), String(layer), (value) => this.choose(name, Number(value))), "inline"));
  }

  choose(name, layer) {
    this.chosen = [name, layer, 0];
    remember({ site: name, layer: String(this.source.sites[name].layers[layer]) });
    this.control();
    this.show(this.step);
  }

  async show(step) {
    this.step = step;
    if (!this.source) return;
    const [name, layer] = this.chosen, site = this.source.sites[name];
    const query = rowOf(site, step), asked = (this.asked = Symbol("row"));
    try {
      const maps = await Promise.all(site.heads.map((_, head) => this.source.bytes(name, layer, head)));
      if (this.asked !== asked) return;
      this.heads.replaceChildren(
        make("p.note", {}, `${site.query_axis} ${query + site.first_query}: “${site.queries[query]}”`),
        ...maps.map((bytes, head) => this.strip(bytes, site, query, head)),
        ...(site.keys.length <= MAX_TOKENS ? [tokenLine(site)] : []));
    } catch (error) {
      if (!this.signal.aborted) this.fail(error);
    }
  }

  strip(bytes, site, query, head) {
    const keys = site.keys.length, scale = currentScale();
    const canvas = make("canvas", { width: keys <= MAX_TOKENS ? keys : 600, height: 1, role: "img" });
    const view = { row: query, column: 0, rows: 1, columns: keys };
    canvas.getContext("2d").putImageData(paint(bytes, keys, view, canvas.width, 1, scale), 0, 0);
    const row = bytes.subarray(query * keys, (query + 1) * keys);
    const best = row.indexOf(Math.max(...row));
    const text = `head ${site.heads[head]} attends most to “${site.keys[best]}”, ${scale.valueOf(row[best]).toFixed(2)}`;
    canvas.setAttribute("aria-label", text);
    return make("div.strip", {}, make("span.label", {}, `head ${site.heads[head]}`), canvas, make("span.note", { title: text }, `${site.keys[best]} ${scale.valueOf(row[best]).toFixed(2)}`));
  }
}

/** Show the tokens below the strips, rotated if they are long. */
function tokenLine(site) {
  const isLong = site.keys.some((token) => token.length > 2);
  const tokens = make(`div.strip-tokens${isLong ? ".is-upright" : ""}`, { "aria-hidden": "true" }, site.keys.map((token) => make("span", { title: token }, token)));
  tokens.style.gridTemplateColumns = `repeat(${site.keys.length}, minmax(0, 1fr))`;
  return make("div.strip", {}, make("span.label"), tokens, make("span.note"));
}

/** Return the map row of a decoding step. The rows of a language model begin with the prompt. */
function rowOf(site, step) {
  const queries = site.queries.length;
  return Math.min(Math.max(step - site.first_query, 0), queries - 1);
}
