// Grid of small maps (layers × heads), their cache, and the notes below them.
//
// The offline page, reports and the studio each provide a source:
//   sites      descriptions of the attention sites, as in `page_data` of page.py, without the maps
//   scale      conversion of bytes to colours and numbers (painting.js)
//   hasMasked  true if some cells are masked
//   bytes(site, layer, head)       promise of the bytes of a map
//   row(site, layer, head, query)  promise of the exact values of a row; optional
// Text is inserted as text, never as markup.

import { isDark, onTheme, paint } from "./painting.js";

const SMALLEST_MAP = 40;
const FLATTEST = 8;
const REPAINT_AFTER = 150;
const MOST_BYTES = 64 << 20;

export function element(parent, name, text = "", className = "") {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

export const shown = (number) => (number === 0 ? "0" : Math.abs(number) >= 0.001 ? number.toFixed(3) : number.toExponential(1));

/** LRU cache of map bytes by name; each map is loaded once. */
export class MapMemory {
  constructor(limit = MOST_BYTES) {
    Object.assign(this, { limit, held: 0, known: new Map() });
  }

  async get(name, load) {
    const entry = this.known.get(name) ?? { promise: load(), size: 0 };
    this.known.delete(name);
    this.known.set(name, entry);
    try {
      const bytes = await entry.promise;
      if (!entry.size && this.known.get(name) === entry) {
        this.held += entry.size = bytes.length;
        this.shrink(name);
      }
      return bytes;
    } catch (error) {
      if (this.known.get(name) === entry) this.known.delete(name);
      throw error;
    }
  }

  shrink(newest) {
    for (const [name, entry] of this.known) {
      if (this.held <= this.limit) return;
      if (name === newest || !entry.size) continue;
      this.known.delete(name);
      this.held -= entry.size;
    }
  }
}

const layerName = (site, row) => (site.is_summary ? "all layers" : `layer ${site.layers[row]}`);
const headName = (site, column) => (site.is_summary ? "all heads" : `head ${site.heads[column]}`);

/** Display name of a head; a summary map has no layer and head numbers. */
export const headTitle = (site, layer, head) => `${layerName(site, layer)}, ${headName(site, head)}`;

export const titleOf = (site, layer, head) => (site.is_summary ? site.name : `${site.name}, ${headTitle(site, layer, head)}`);

export const axesOf = (site) =>
  `row: ${site.query_axis} · column: ${site.key_axis} · largest weight ${shown(site.largest)}`;

/** Statistics of a head's map as one line of text. */
export function factsOf(site, layer, head) {
  const { patterns, entropy } = site.statistics;
  const masses = Object.entries(patterns).map(([name, of]) => [name, of.mass[layer][head]]);
  const facts = masses.filter(([, mass]) => mass !== null).map(([name, mass]) => `${name} ${mass.toFixed(2)}`);
  if (entropy[layer][head] !== null) facts.push(`entropy ${entropy[layer][head].toFixed(2)} of uniform`);
  return `attention on ${facts.join(" · ")}`;
}

/** Show the small maps of a site: rows are layers, columns are heads; a click shows one in `detail`. */
export function showGrid(parent, name, source, detail) {
  const site = source.sites[name];
  const section = element(parent, "section", "", "map-site");
  element(section, "h2", site.name);
  element(section, "p", axesOf(site), "note");
  const grid = element(section, "div", "", "map-grid");
  grid.style.gridTemplateColumns = `auto repeat(${site.heads.length}, minmax(0, 220px))`;
  element(grid, "span");
  site.heads.forEach((_, column) => element(grid, "span", headName(site, column), "label"));
  site.layers.forEach((_, row) => {
    element(grid, "span", layerName(site, row), "label layer");
    site.heads.forEach((__, column) => {
      const button = element(grid, "button");
      button.type = "button";
      button.title = titleOf(site, row, column);
      button.setAttribute("aria-label", button.title);
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => detail.choose(name, row, column));
      detail.buttons.set([name, row, column].join("/"), button);
      showSmall(element(button, "canvas"), source, name, row, column);
    });
  });
  return section;
}

/**
 * Paint one whole map on a small canvas when it scrolls into view, at the exact pixel size of the screen:
 * a browser that scaled it down would average the cells, and a single large weight would fade.
 */
export function showSmall(canvas, source, name, layer, head) {
  const site = source.sites[name];
  const queries = site.queries.length, keys = site.keys.length;
  const whole = { row: 0, column: 0, rows: queries, columns: keys };
  const shape = Math.min(Math.max(keys / queries, 1 / FLATTEST), FLATTEST);
  canvas.style.aspectRatio = String(shape);
  const paintNow = async () => {
    const width = Math.max(Math.round(canvas.clientWidth * (window.devicePixelRatio || 1)), SMALLEST_MAP);
    const theme = isDark() ? "dark" : "light";
    if (width === Number(canvas.dataset.painted) && theme === canvas.dataset.theme) return;
    try {
      const bytes = await source.bytes(name, layer, head);
      canvas.width = width;
      canvas.height = Math.max(Math.round(width / shape), 1);
      canvas.getContext("2d").putImageData(paint(bytes, keys, whole, canvas.width, canvas.height, source.scale), 0, 0);
      Object.assign(canvas.dataset, { painted: String(width), theme });
    } catch (error) {
      if (error.name !== "AbortError") canvas.title = error.message;
    }
  };
  canvas.repaint = paintNow;
  whenSeen(canvas, paintNow);
}

/** Repaint the small maps when the page becomes light or dark. */
onTheme(() => {
  for (const canvas of document.querySelectorAll(".map-grid canvas")) canvas.repaint?.();
});

/** Call `act` when the target scrolls into view, and again when its size changes. */
function whenSeen(target, act) {
  let isSeen = false, timer = 0;
  const observer = new IntersectionObserver((entries) => {
    isSeen = entries.at(-1).isIntersecting;
    if (isSeen) act();
  }, { rootMargin: "200px" });
  observer.observe(target);
  new ResizeObserver(() => {
    clearTimeout(timer);
    if (isSeen) timer = setTimeout(act, REPAINT_AFTER);
  }).observe(target);
}

/** Show the results of the checks, and a note if small maps are pooled. */
export function showChecks(parent, data) {
  for (const [passed, line] of data.checks) element(parent, "p", line, passed ? "" : "map-failed");
  const isPooled = Object.values(data.sites).some(({ queries, keys }) => Math.max(queries.length, keys.length) > SMALLEST_MAP);
  if (isPooled) element(parent, "p", "Where a small map has fewer pixels than weights, each pixel shows the maximum of its weights.");
}

export const KEYS = [
  [["←", "→", "↑", "↓"], "move the cell"], [["[", "]"], "change the head"], [["{", "}"], "change the layer"],
  [["+", "−", "0"], "zoom (or the wheel; drag to pan)"],
];

export function showKeys(parent) {
  for (const [keys, meaning] of KEYS) {
    for (const key of keys) { element(parent, "kbd", key); parent.append(" "); }
    parent.append(` ${meaning}   `);
  }
}
