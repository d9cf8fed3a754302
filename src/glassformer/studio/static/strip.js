// Attention as strips of tokens: of one decoding step with one strip per head, or of the token that is pointed at.

import { choice, field, make } from "./dom.js";
import { currentScale } from "./maps.js";
import { onTheme, paint } from "./painting.js";
import { remember } from "./route.js";
import { chosenIn } from "./subject.js";
import { failure, skeleton } from "./states.js";

const MAX_TOKENS = 60;

/** Number of tokens above which nobody reads them as text. */
const MAX_READ = 200;

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

/** Tokens of a map as text: pointing at a query colours the keys by what the chosen head reads from it. */
export class TokenStrip {
  constructor(detail, signal) {
    Object.assign(this, { detail, signal, at: 0 });
    this.element = make("div.token-strip");
  }

  /** Show the tokens of the chosen map, or nothing if there are too many to read. */
  show() {
    const { detail } = this, [name] = detail.chosen, site = detail.source.sites[name];
    this.element.replaceChildren();
    if (site.keys.length > MAX_READ || site.queries.length > MAX_READ) return;
    const token = (text, index, properties) => make("span.token", { role: "listitem", ...properties(index) }, text || "∅");
    const read = (index) => ({ tabIndex: 0, onpointerenter: () => this.colour(index), onfocus: () => this.colour(index) });
    // One row if every token is both a query and a key.
    const isSame = site.queries.length === site.keys.length && site.queries.every((text, index) => text === site.keys[index]);
    this.queries = site.queries.map((text, index) => token(text, index, read));
    this.keys = isSame ? this.queries : site.keys.map((text, index) => token(text, index, () => ({})));
    this.note = make("p.note", { "aria-live": "polite" });
    const row = (label, tokens) => make("div.coloured", { role: "list", "aria-label": label }, tokens);
    this.element.replaceChildren(
      make("h3", {}, "Point at a token to see what it reads"), row(site.query_axis, this.queries), ...(isSame ? [] : [row(site.key_axis ?? "keys", this.keys)]), this.note);
    this.colour(Math.min(this.at, this.queries.length - 1));
  }

  async colour(query) {
    this.at = query;
    const { detail } = this, chosen = detail.chosen, site = detail.source.sites[chosen[0]], keys = site.keys.length;
    const bytes = await detail.source.bytes(...chosen);
    if (this.signal.aborted || this.at !== query || detail.chosen.some((of, index) => of !== chosen[index])) return;
    const weights = Array.from(bytes.subarray(query * keys, (query + 1) * keys), (of) => detail.source.scale.valueOf(of));
    const most = Math.max(...weights, 1e-12);
    this.keys.forEach((of, index) => {
      of.classList.add("is-positive");
      of.style.setProperty("--share", String(weights[index] / most));
      of.title = `${site.keys[index]}: ${weights[index].toFixed(3)}`;
    });
    this.queries.forEach((of, index) => of.classList.toggle("is-here", index === query));
    const best = weights.indexOf(Math.max(...weights));
    this.note.textContent = `“${site.queries[query]}” reads most from “${site.keys[best]}”: ${weights[best].toFixed(2)}`;
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
