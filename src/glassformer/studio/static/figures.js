// SVG figures of the Explain view: signed bars, a grid of effects, alignment lines. Colours come from the style sheet.

import { draw, make } from "./dom.js";

const CELL = 28;
const LABEL = 176;
const CHARACTER = 7.3;
const TALL = 64;

const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const sign = (value) => (value < 0 ? "negative" : "positive");
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

/** Draw one bar per row, to the right if its value is positive and to the left if it is negative. */
export function signedBars(rows, { width = 420, label = 120, title = "" } = {}) {
  const most = Math.max(...rows.map(({ value }) => Math.abs(value)), 1e-12);
  const middle = label + (width - label - 52) / 2, room = (width - label - 52) / 2;
  const svg = draw("svg.signed-bars", { viewBox: `0 0 ${width} ${rows.length * 22 + 4}`, role: "img", "aria-label": `${title}: ${rows.map((row) => `${row.label} ${signed(row.value)}`).join("; ")}` });
  rows.forEach((row, index) => {
    const y = index * 22 + 4, size = Math.max((room * Math.abs(row.value)) / most, 1);
    svg.append(
      draw("text.bar-label", { x: label - 10, y: y + 13, "text-anchor": "end" }, shorten(row.label, Math.floor(label / CHARACTER))),
      draw(`rect.is-${sign(row.value)}`, { x: row.value < 0 ? middle - size : middle, y: y + 3, width: size, height: 12, rx: 2 }),
      draw("text.bar-value", { x: width, y: y + 13, "text-anchor": "end" }, signed(row.value)));
  });
  svg.append(draw("line.zero", { x1: middle, x2: middle, y1: 2, y2: rows.length * 22 + 2 }));
  return svg;
}

/** Make a strip of tokens, coloured by their share of the largest value. `onPoint(index)` follows pointer and focus. */
export function colouredTokens(tokens, values, { label, title = (index) => `${tokens[index]}: ${signed(values[index])}`, onPoint = null } = {}) {
  const most = Math.max(...values.map(Math.abs), 1e-12);
  return make("div.coloured", { role: "list", "aria-label": label }, tokens.map((token, index) => {
    const of = make(`span.token.is-${sign(values[index])}`, { role: "listitem", tabIndex: 0, title: title(index), "aria-label": title(index) }, token || "∅");
    of.style.setProperty("--share", String(Math.abs(values[index]) / most));
    if (onPoint) for (const event of ["pointerenter", "focus"]) of.addEventListener(event, () => onPoint(index));
    return of;
  }));
}

/**
 * Grid of numbers from −1 to 1 with the names of its rows and columns. The chosen cell is described in `readout`; arrow
 * keys move it while the grid has the focus.
 */
export class EffectGrid {
  constructor({ title, rows, columns, values, describe }) {
    Object.assign(this, { title, rows, columns, values, describe, at: largest(values) });
    this.readout = make("p.note", { role: "status" });
    this.svg = this.drawn();
    this.element = make("div.effect-grid", {}, make("div.scroll", {}, this.svg), this.readout);
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.choose(...this.at);
  }

  drawn() {
    const { rows, columns, values } = this;
    const width = LABEL + columns.length * CELL + 8, height = TALL + rows.length * CELL + 8;
    const svg = draw("svg.grid-figure", { viewBox: `0 0 ${width} ${height}`, width, height, tabindex: 0, role: "application", "aria-label": `${this.title}. Arrow keys move between cells.` });
    columns.forEach((name, column) => {
      const x = LABEL + column * CELL + CELL / 2;
      svg.append(draw("text", { x, y: TALL - 8, transform: `rotate(-50 ${x} ${TALL - 8})` }, shorten(name, 9)));
    });
    rows.forEach((name, row) => {
      svg.append(draw("text", { x: LABEL - 8, y: TALL + row * CELL + 18, "text-anchor": "end" }, shorten(name, 24)));
      values[row].forEach((value, column) => {
        const place = { x: LABEL + column * CELL + 1, y: TALL + row * CELL + 1, width: CELL - 2, height: CELL - 2, rx: 2 };
        const cell = draw(`rect.cell.is-${sign(value)}`, { ...place, "fill-opacity": Math.min(Math.abs(value), 1).toFixed(3) });
        const ground = draw("rect.cell-ground", place);
        for (const of of [cell, ground]) of.addEventListener("pointerenter", () => this.choose(row, column));
        svg.append(ground, cell);
      });
    });
    this.frame = draw("rect.cell-frame", { width: CELL, height: CELL, rx: 3 });
    svg.append(this.frame);
    return svg;
  }

  choose(row, column) {
    this.at = [row, column];
    this.frame.setAttribute("x", LABEL + column * CELL);
    this.frame.setAttribute("y", TALL + row * CELL);
    this.readout.textContent = this.describe(row, column);
  }

  key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
    this.choose(within(this.at[0] + move[0], this.rows.length), within(this.at[1] + move[1], this.columns.length));
  }
}

/** Return row and column of the value that is farthest from 0. */
function largest(values) {
  let best = [0, 0];
  values.forEach((row, index) => row.forEach((value, column) => {
    if (Math.abs(value) > Math.abs(values[best[0]][best[1]])) best = [index, column];
  }));
  return best;
}

/** Draw source words above target words, with a line per link. */
export function alignmentLines({ source, target, links, sure = null }) {
  const places = (words) => {
    let x = 16;
    return words.map((word) => {
      const width = Math.max(word.length * CHARACTER, 12), middle = x + width / 2;
      x += width + 18;
      return { middle, end: x };
    });
  };
  const [above, below] = [places(source), places(target)];
  const width = Math.max(above.at(-1)?.end ?? 0, below.at(-1)?.end ?? 0) + 8;
  const wanted = sure && new Set(sure.map(String));
  const told = links.map(([from, to]) => `${source[from]} – ${target[to]}`).join("; ");
  const svg = draw("svg.alignment", { viewBox: `0 0 ${width} 132`, width, height: 132, role: "img", "aria-label": `Links: ${told || "none"}` });
  for (const [from, to] of links) {
    const isWrong = wanted && !wanted.has(String([from, to]));
    svg.append(draw(`line${isWrong ? ".is-other" : ""}`, { x1: above[from].middle, y1: 30, x2: below[to].middle, y2: 100 }, draw("title", {}, `${source[from]} – ${target[to]}`)));
  }
  source.forEach((word, index) => svg.append(draw("text", { x: above[index].middle, y: 22, "text-anchor": "middle" }, word)));
  target.forEach((word, index) => svg.append(draw("text", { x: below[index].middle, y: 118, "text-anchor": "middle" }, word)));
  return svg;
}
