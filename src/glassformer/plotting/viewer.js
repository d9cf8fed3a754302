// One large interactive map: axes, crosshair, readout, zoom, keys. Text is inserted as text, never as markup.

import { boxOf, clamp, drawAxes } from "./axes.js";
import { axesOf, element, factsOf, shown, titleOf } from "./overview.js";
import { isDark, onTheme, paint, paintMasked, paintRamp } from "./painting.js";

const LONGEST_CLICK = 4;
const SPEAK_AFTER = 250;
const ASK_AFTER = 40;

const mostOfTheWindow = () => Math.max(320, window.innerHeight * 0.74);
const axesAndFacts = ({ buttons, site, chosen }) =>
  [buttons.size ? "" : axesOf(site), factsOf(site, ...chosen.slice(1))];

/** Large map. Calls `onChoose(name, layer, head)` when a map is chosen and `onCell(cell)` when a cell is selected. */
export class MapDetail {
  constructor(source, { onChoose = () => {}, onCell = () => {}, tallest = mostOfTheWindow, notes = axesAndFacts } = {}) {
    Object.assign(this, { source, onChoose, onCell, tallest, notes, buttons: new Map(), cell: null, hover: null, drag: null });
    this.element = document.createElement("section");
    this.element.className = "map-detail";
    this.heading = element(this.element, "h2");
    this.notesAbove = element(this.element, "div");
    this.canvas = element(this.element, "canvas", "", "map-canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "attention map");
    this.scale = element(this.element, "div", "", "map-scale");
    this.readout = element(this.element, "p", "", "map-readout");
    this.spoken = element(this.element, "p", "", "unseen");
    this.spoken.setAttribute("role", "status");
    this.showScale();
    this.listen();
  }

  listen() {
    const on = (name, act, options) => this.canvas.addEventListener(name, act, options);
    on("pointermove", (event) => this.pointer(event));
    on("pointerdown", (event) => this.press(event));
    on("pointerup", (event) => this.release(event));
    on("pointerleave", () => this.leave());
    on("dblclick", () => this.reset());
    on("wheel", (event) => this.wheel(event), { passive: false });
    on("keydown", (event) => { if (this.key(event.key)) event.preventDefault(); });
    const redraw = () => this.draw();
    this.resizing = new ResizeObserver(redraw);
    this.resizing.observe(this.element);
    this.forgetTheme = onTheme(() => { this.paintScale(); this.draw(); });
  }

  /** Disconnect all observers; call it before removing the element. */
  close() {
    this.resizing.disconnect();
    this.forgetTheme();
    this.bytes = null;
  }

  /** Show the maps of another source; the chosen map stays the same if it exists there. */
  async replace(source) {
    const [name, layer, head] = this.chosen ?? [Object.keys(source.sites)[0], 0, 0];
    this.source = source;
    const site = source.sites[name] ? name : Object.keys(source.sites)[0];
    await this.choose(site, Math.min(layer, source.sites[site].layers.length - 1), Math.min(head, source.sites[site].heads.length - 1));
  }

  async choose(name, layer, head) {
    const chosen = (this.chosen = [name, layer, head]);
    const source = this.source;
    for (const [key, button] of this.buttons) button.setAttribute("aria-pressed", String(key === chosen.join("/")));
    const bytes = await source.bytes(name, layer, head);
    if (this.chosen !== chosen || this.source !== source) return;
    const before = this.site;
    this.site = source.sites[name];
    this.bytes = bytes;
    this.exact = null;
    const isSame = before && before.queries.length === this.site.queries.length && before.keys.length === this.site.keys.length;
    if (!isSame) {
      this.view = this.whole();
      this.hover = null;
      if (before || !this.fits(this.cell)) this.cell = null;
    }
    this.heading.textContent = titleOf(this.site, layer, head);
    this.canvas.setAttribute("aria-label", this.heading.textContent);
    this.notesAbove.replaceChildren();
    for (const line of this.notes(this)) if (line) element(this.notesAbove, "p", line, "note");
    this.draw();
    this.updateReadout();
    this.onChoose(name, layer, head);
  }

  fits(cell) {
    return cell && cell.row < this.site.queries.length && cell.column < this.site.keys.length;
  }

  whole() {
    return { row: 0, column: 0, rows: this.site.queries.length, columns: this.site.keys.length };
  }

  reset() {
    this.view = this.whole();
    this.draw();
  }

  showScale() {
    const { scale, hasMasked } = this.source;
    element(this.scale, "span", scale.ends[0]);
    this.ramp = element(this.scale, "canvas");
    element(this.scale, "span", scale.ends[1]);
    if (hasMasked) {
      this.sample = element(this.scale, "canvas", "", "swatch");
      element(this.scale, "span", "masked");
    }
    this.paintScale();
    this.pooling = element(this.scale, "span");
    const buttons = element(this.scale, "span", "", "map-zoom");
    for (const [sign, label, act] of [["−", "zoom out", () => this.zoom(1.25)], ["+", "zoom in", () => this.zoom(0.8)], ["whole", "show the whole map", () => this.reset()]]) {
      const button = element(buttons, "button", sign);
      button.type = "button";
      button.title = label;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", act);
    }
  }

  paintScale() {
    paintRamp(this.ramp, this.source.scale);
    if (this.sample) paintMasked(this.sample, this.source.scale);
  }

  colour(name) {
    return getComputedStyle(this.canvas).getPropertyValue(name).trim();
  }

  draw() {
    if (!this.bytes) return;
    const ratio = window.devicePixelRatio || 1;
    const context = this.canvas.getContext("2d");
    const box = (this.box = boxOf(context, this.site, Math.max(this.element.clientWidth, 240), this.tallest()));
    const height = box.top + box.mapHeight + box.bottom;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.dataset.map = [box.left, box.top, box.mapWidth, box.mapHeight].join(" ");
    const image = paint(
      this.bytes, this.site.keys.length, this.view,
      Math.round(box.mapWidth * ratio), Math.round(box.mapHeight * ratio), this.source.scale,
    );
    const rows = this.view.rows / image.height, columns = this.view.columns / image.width;
    this.pooling.textContent = Math.max(rows, columns) > 1
      ? `each pixel shows the maximum of up to ${Math.ceil(rows)} × ${Math.ceil(columns)} weights` : "";
    context.putImageData(image, Math.round(box.left * ratio), Math.round(box.top * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawAxes(context, box, this.view, this.site, { ink: this.colour("--ink"), line: this.colour("--faint") });
    this.still = null;
    this.drawCell();
  }

  /** Draw the crosshair over a copy of the static picture, so that hovering does not repaint the map. */
  drawCell() {
    const context = this.canvas.getContext("2d"), box = this.box;
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    if (!this.still) {
      this.still = new OffscreenCanvas(this.canvas.width, this.canvas.height);
      this.still.getContext("2d").drawImage(this.canvas, 0, 0);
    } else {
      context.clearRect(0, 0, this.canvas.width, this.canvas.height);
      context.drawImage(this.still, 0, 0);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.save();
    context.beginPath();
    context.rect(box.left - 1, box.top - 1, box.mapWidth + 2, box.mapHeight + 2);
    context.clip();
    const at = this.hover ?? this.cell;
    if (at) this.drawCross(context, box, at);
    if (this.cell) this.drawFrame(context, box, this.cell, 2);
    if (this.hover) this.drawFrame(context, box, this.hover, 1);
    context.restore();
  }

  bounds(box, cell) {
    const width = box.mapWidth / this.view.columns, height = box.mapHeight / this.view.rows;
    return {
      x: box.left + (cell.column - this.view.column) * width, y: box.top + (cell.row - this.view.row) * height, width, height,
    };
  }

  drawCross(context, box, cell) {
    const { x, y, width, height } = this.bounds(box, cell);
    context.fillStyle = isDark() ? "rgba(200, 205, 220, 0.14)" : "rgba(102, 112, 133, 0.16)";
    context.fillRect(box.left, y, box.mapWidth, Math.max(height, 1));
    context.fillRect(x, box.top, Math.max(width, 1), box.mapHeight);
  }

  drawFrame(context, box, cell, line) {
    const { x, y, width, height } = this.bounds(box, cell);
    const grow = Math.max(0, 5 - Math.min(width, height)) / 2;
    context.strokeStyle = this.colour("--select");
    context.lineWidth = line;
    context.strokeRect(x - grow, y - grow, width + 2 * grow, height + 2 * grow);
  }

  at(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left - this.box.left, y = event.clientY - bounds.top - this.box.top;
    return {
      column: this.view.column + (x / this.box.mapWidth) * this.view.columns,
      row: this.view.row + (y / this.box.mapHeight) * this.view.rows,
      isInside: x >= 0 && y >= 0 && x < this.box.mapWidth && y < this.box.mapHeight,
    };
  }

  press(event) {
    if (!this.box || event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { ...this.at(event), x: event.clientX, y: event.clientY, isMoving: false };
  }

  pointer(event) {
    if (!this.box) return;
    const at = this.at(event), drag = this.drag;
    if (drag) {
      drag.isMoving ||= Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > LONGEST_CLICK;
      this.canvas.classList.toggle("is-dragged", drag.isMoving);
      if (drag.isMoving) this.show({ ...this.view, row: this.view.row + drag.row - at.row, column: this.view.column + drag.column - at.column });
    } else if (at.isInside) {
      const hover = { row: Math.floor(at.row), column: Math.floor(at.column) };
      if (this.hover && this.hover.row === hover.row && this.hover.column === hover.column) return;
      this.hover = hover;
      this.drawCell();
      this.updateReadout();
    } else this.leave();
  }

  /** Select the cell under the pointer if the press was not a drag. */
  release(event) {
    const drag = this.drag;
    this.drag = null;
    this.canvas.classList.remove("is-dragged");
    if (drag && !drag.isMoving && drag.isInside) {
      const at = this.at(event);
      this.select(Math.floor(at.row), Math.floor(at.column));
    }
  }

  /** Clear the hovered cell and show the selected one again. */
  leave() {
    if (!this.hover || this.drag) return;
    this.hover = null;
    this.drawCell();
    this.updateReadout();
  }

  wheel(event) {
    const at = this.at(event);
    if (!at.isInside) return;
    event.preventDefault();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
  }

  zoom(factor, at = null) {
    const { view } = this, cell = this.cell;
    at ??= cell ? { row: cell.row + 0.5, column: cell.column + 0.5 } : { row: view.row + view.rows / 2, column: view.column + view.columns / 2 };
    this.show({
      rows: view.rows * factor, columns: view.columns * factor,
      row: at.row - (at.row - view.row) * factor, column: at.column - (at.column - view.column) * factor,
    });
  }

  /** Show this part of the map, moved and resized to lie within the map. */
  show(view) {
    const queries = this.site.queries.length, keys = this.site.keys.length;
    const rows = clamp(view.rows, Math.min(4, queries), queries), columns = clamp(view.columns, Math.min(4, keys), keys);
    this.view = { rows, columns, row: clamp(view.row, 0, queries - rows), column: clamp(view.column, 0, keys - columns) };
    this.draw();
  }

  /** Handle a key; return true if it has a meaning here. */
  key(key) {
    if (!this.site) return false;
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const [name, layer, head] = this.chosen;
    const turn = (value, count, by) => (value + by + count) % count;
    const { layers, heads } = this.site;
    if (key in moves) {
      const from = this.hover ?? this.cell;
      this.hover = null;
      if (from) this.select(from.row + moves[key][0], from.column + moves[key][1]);
      else this.select(Math.floor(this.view.row), Math.floor(this.view.column));
    } else if (key === "[") this.choose(name, layer, turn(head, heads.length, -1));
    else if (key === "]") this.choose(name, layer, turn(head, heads.length, 1));
    else if (key === "{") this.choose(name, turn(layer, layers.length, -1), head);
    else if (key === "}") this.choose(name, turn(layer, layers.length, 1), head);
    else if (key === "+" || key === "=") this.zoom(0.8);
    else if (key === "-") this.zoom(1.25);
    else if (key === "0") this.reset();
    else return false;
    return true;
  }

  select(row, column) {
    this.cell = {
      row: clamp(row, 0, this.site.queries.length - 1), column: clamp(column, 0, this.site.keys.length - 1),
    };
    const { view } = this;
    const isSeen = this.cell.row + 1 > view.row && this.cell.row < view.row + view.rows
      && this.cell.column + 1 > view.column && this.cell.column < view.column + view.columns;
    if (isSeen) this.drawCell();
    else this.show({ ...view, row: this.cell.row - view.rows / 2, column: this.cell.column - view.columns / 2 });
    this.updateReadout();
    this.onCell(this.cell);
  }

  /** Show tokens, weight, rank in the row and multiple of the uniform weight of the current cell. */
  updateReadout() {
    const cell = this.hover ?? this.cell;
    this.readout.replaceChildren();
    if (!cell) {
      this.readout.textContent = "Point at a cell, or move to it with the arrow keys.";
      return;
    }
    const { site } = this, scale = this.source.scale, keys = site.keys.length;
    const row = this.bytes.subarray(cell.row * keys, (cell.row + 1) * keys);
    const values = this.exact?.row === cell.row ? this.exact.values : null;
    if (!row[cell.column]) element(this.readout, "strong", "masked");
    else {
      const value = values ? values[cell.column] : scale.valueOf(row[cell.column]);
      const sign = scale.isDifference && value > 0 ? "+" : "";
      element(this.readout, "strong", `${values ? "" : "≈ "}${sign}${values ? exactly(value) : shown(value)}`);
      this.readout.append(scale.isDifference ? "B’s weight minus A’s" : rankInRow(row, cell.column, value, values));
    }
    element(this.readout, "br");
    const query = `${site.query_axis} ${cell.row + site.first_query}: “${site.queries[cell.row]}”`;
    const output = site.outputs ? `, output “${site.outputs[cell.row]}”` : "";
    this.readout.append(`${query}${output} → ${site.key_axis} ${cell.column}: “${site.keys[cell.column]}”`);
    this.later("speaking", SPEAK_AFTER, () => { this.spoken.textContent = this.readout.innerText; });
    if (!values && this.source.row) this.later("asking", ASK_AFTER, () => this.ask(cell.row));
  }

  later(name, milliseconds, act) {
    clearTimeout(this[name]);
    this[name] = setTimeout(act, milliseconds);
  }

  /** Load the exact values of a row, once the pointer rests on it. */
  async ask(row) {
    const { source, chosen } = this;
    try {
      const values = await source.row(...chosen, row);
      if (source !== this.source || chosen !== this.chosen) return;
      this.exact = { row, values };
      if ((this.hover ?? this.cell)?.row === row) this.updateReadout();
    } catch {
      // The rounded weight stays, marked with ≈.
    }
  }
}

const exactly = (value) => (value === 0 ? "0" : Math.abs(value) >= 0.0001 ? value.toFixed(5) : value.toExponential(2));

/** Compare a weight with its row: multiple of the uniform weight, and rank. Exact if `values` are known. */
function rankInRow(row, column, value, values) {
  let allowed = 0, larger = 0;
  for (let other = 0; other < row.length; other++) {
    if (!row[other]) continue;
    allowed += 1;
    if (values ? values[other] > value : row[other] > row[column]) larger += 1;
  }
  return `${(value * allowed).toFixed(1)} × uniform · rank ${larger + 1} of ${allowed}`;
}
