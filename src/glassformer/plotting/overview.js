// The small maps: a grid of layers and heads, what is remembered of them, and what is said under them.
//
// Whoever shows maps, the page that works offline or the studio, gives a source:
//   places     what `html.page_data` says of each place, without need of its maps
//   scale      how bytes become colours and numbers (painting.js)
//   hasMasked  whether some cells are masked
//   bytes(place, layer, head)       promises the bytes of a map
//   row(place, layer, head, query)  promises the exact values of a row; a source may lack it
// Text is never markup.

import { paint } from "./painting.js";

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

/** Bytes of maps by name: each is asked for once, and the longest unused go first when there are too many. */
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

  shrink(kept) {
    for (const [name, entry] of this.known) {
      if (this.held <= this.limit) return;
      if (name === kept || !entry.size) continue;
      this.known.delete(name);
      this.held -= entry.size;
    }
  }
}

const layerName = (place, row) => (place.is_summary ? "all layers" : `layer ${place.layers[row]}`);
const headName = (place, column) => (place.is_summary ? "all heads" : `head ${place.heads[column]}`);

/** A head for people; what stands for all of them together needs no number. */
export const headTitle = (place, layer, head) => `${layerName(place, layer)}, ${headName(place, head)}`;

export const titleOf = (place, layer, head) => (place.is_summary ? place.name : `${place.name}, ${headTitle(place, layer, head)}`);

export const axesOf = (place) =>
  `row: ${place.query_axis} · column: ${place.key_axis} · largest weight ${shown(place.largest)}`;

/** What a head's map looks like, in numbers. */
export function factsOf(place, layer, head) {
  const { patterns, entropy } = place.statistics;
  const masses = Object.entries(patterns).map(([name, of]) => [name, of.mass[layer][head]]);
  const written = masses.filter(([, mass]) => mass !== null).map(([name, mass]) => `${name} ${mass.toFixed(2)}`);
  if (entropy[layer][head] !== null) written.push(`entropy ${entropy[layer][head].toFixed(2)} of uniform`);
  return `attention on ${written.join(" · ")}`;
}

/** The small maps of a place: rows are layers, columns are heads; each chooses what `detail` shows. */
export function showGrid(parent, name, source, detail) {
  const place = source.places[name];
  const section = element(parent, "section", "", "map-place");
  element(section, "h2", place.name);
  element(section, "p", axesOf(place), "note");
  const grid = element(section, "div", "", "map-grid");
  grid.style.gridTemplateColumns = `auto repeat(${place.heads.length}, minmax(0, 220px))`;
  element(grid, "span");
  place.heads.forEach((_, column) => element(grid, "span", headName(place, column), "label"));
  place.layers.forEach((_, row) => {
    element(grid, "span", layerName(place, row), "label layer");
    place.heads.forEach((__, column) => {
      const button = element(grid, "button");
      button.type = "button";
      button.title = titleOf(place, row, column);
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
 * One whole map on a small canvas, painted when it comes into sight. It has the pixels that it takes on the screen:
 * a browser that made it smaller would take the mean, and a needle would fade.
 */
export function showSmall(canvas, source, name, layer, head) {
  const place = source.places[name];
  const queries = place.queries.length, keys = place.keys.length;
  const whole = { row: 0, column: 0, rows: queries, columns: keys };
  const shape = Math.min(Math.max(keys / queries, 1 / FLATTEST), FLATTEST);
  canvas.style.aspectRatio = String(shape);
  const paintNow = async () => {
    const width = Math.max(Math.round(canvas.clientWidth * (window.devicePixelRatio || 1)), SMALLEST_MAP);
    if (width === Number(canvas.dataset.painted)) return;
    try {
      const bytes = await source.bytes(name, layer, head);
      canvas.width = width;
      canvas.height = Math.max(Math.round(width / shape), 1);
      canvas.getContext("2d").putImageData(paint(bytes, keys, whole, canvas.width, canvas.height, source.scale), 0, 0);
      canvas.dataset.painted = String(width);
    } catch (error) {
      if (error.name !== "AbortError") canvas.title = error.message;
    }
  };
  whenSeen(canvas, paintNow);
}

/** When the target comes into sight, and again when its size has changed. */
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

/** Whether the maps are what the model did, and what the small ones leave out. */
export function showChecks(parent, data) {
  for (const [passed, line] of data.checks) element(parent, "p", line, passed ? "" : "map-failed");
  const isPooled = Object.values(data.places).some(({ queries, keys }) => Math.max(queries.length, keys.length) > SMALLEST_MAP);
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
