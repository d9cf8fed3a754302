// Attention maps held by the server: bytes are loaded when a map becomes visible, exact rows when it is pointed at.

import { ask, path } from "./api.js";
import { MapMemory } from "./overview.js";
import { differenceBytes, differenceScale, readScale } from "./painting.js";

const MAX_CONCURRENT = 4;
const MAX_ROWS = 400;

const memory = new MapMemory();
let scale = null;

/** Set the colour scale of weights, as in the files that the server draws. */
export async function setScale({ scales }) {
  scale = await readScale(scales);
}

export const currentScale = () => scale;

let running = 0;
const waiting = [];

/** Limit concurrent requests, so that the page stays responsive. */
async function withLimit(act) {
  if (running >= MAX_CONCURRENT) await new Promise((resolve) => waiting.push(resolve));
  running += 1;
  try {
    return await act();
  } finally {
    running -= 1;
    waiting.shift()?.();
  }
}

/** Attention maps for one input. The server drops maps that were not used for long, and computes them again on request. */
export class StudioMaps {
  constructor(run, request, reply, signal) {
    Object.assign(this, { run, request, reply, signal, scale, rows: new Map(), renewing: null });
    this.sites = reply.sites;
    this.hasMasked = reply.has_masked;
  }

  static async take(run, request, signal) {
    const reply = await ask(`runs/${path(run)}/attention`, { body: request, signal });
    return new StudioMaps(run, request, reply, signal);
  }

  async fetch(rest) {
    const id = this.reply.map;
    try {
      return await ask(`maps/${path(id)}/${rest}`, { signal: this.signal, as: "response" });
    } catch (error) {
      if (error.status !== 404) throw error;
      if (this.reply.map === id) {
        this.renewing ??= ask(`runs/${path(this.run)}/attention`, { body: this.request, signal: this.signal });
        this.reply = await this.renewing;
        this.renewing = null;
      }
      return ask(`maps/${path(this.reply.map)}/${rest}`, { signal: this.signal, as: "response" });
    }
  }

  bytes(site, layer, head) {
    return memory.get([this.reply.map, site, layer, head].join("/"), () =>
      withLimit(async () => new Uint8Array(await (await this.fetch(path(site, layer, head))).arrayBuffer())));
  }

  row(site, layer, head, query) {
    const name = [site, layer, head, query].join("/");
    if (!this.rows.has(name)) {
      if (this.rows.size >= MAX_ROWS) this.rows.delete(this.rows.keys().next().value);
      const asked = this.values(site, layer, head, query, query + 1);
      asked.catch(() => this.rows.delete(name));
      this.rows.set(name, asked);
    }
    return this.rows.get(name);
  }

  async values(site, layer, head, start, stop) {
    const reply = await this.fetch(`${path(site, layer, head)}/rows?start=${start}&stop=${stop}`);
    return new Float32Array(await reply.arrayBuffer());
  }

  /** Return the export files of the chosen map, or of all maps if none is chosen. */
  files(chosen = null) {
    const give = (format) => async () => {
      const [site, layer, head] = chosen?.() ?? [];
      const part = chosen ? `&site=${site}&layer=${layer}&head=${head}` : "";
      return (await this.fetch(`export?format=${format}${part}`)).blob();
    };
    return Object.fromEntries(["png", "svg", "csv", "npz", "html"].map((format) => [format, give(format)]));
  }
}

const sameTokens = (first, second) => first.length === second.length;

/** Difference B − A of all maps that have the same size in both. */
export class Difference {
  constructor(first, second) {
    Object.assign(this, { first, second, scale: differenceScale(scale), hasMasked: first.hasMasked || second.hasMasked });
    const shared = Object.entries(first.sites).filter(([name, site]) => {
      const other = second.sites[name];
      return other && sameTokens(site.queries, other.queries) && sameTokens(site.keys, other.keys);
    });
    this.sites = Object.fromEntries(shared.map(([name, site]) => {
      const other = second.sites[name];
      const both = (axis) => site[axis].map((token, at) => (token === other[axis][at] ? token : `${token}/${other[axis][at]}`));
      const count = (axis) => site[axis].slice(0, Math.min(site[axis].length, other[axis].length));
      return [name, { ...site, queries: both("queries"), keys: both("keys"), layers: count("layers"), heads: count("heads"), outputs: null }];
    }));
  }

  async bytes(...chosen) {
    const [first, second] = await Promise.all([this.first.bytes(...chosen), this.second.bytes(...chosen)]);
    return differenceBytes(first, second);
  }

  async row(...chosen) {
    const [first, second] = await Promise.all([this.first.row(...chosen), this.second.row(...chosen)]);
    return second.map((value, at) => value - first[at]);
  }

  async values(site, layer, head, start, stop) {
    const [first, second] = await Promise.all([this.first, this.second].map((of) => of.values(site, layer, head, start, stop)));
    return second.map((value, at) => value - first[at]);
  }
}
