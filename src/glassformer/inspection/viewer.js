// Attention maps on a page: a grid of small maps, and one large map that answers to pointer and keys.
//
// A map is a byte a cell, as `pixels.to_bytes` makes them: 0 is masked, 1 … 255 are the square root of the
// weight. Where there are more cells than pixels, a pixel shows the largest of its cells. Text is never markup.

const BYTE_STEPS = 254;
const READABLE_CELL = 12;
const LARGEST_CELL = 46;
const LONGEST_LABEL = 110;
const SMALL_MAP = 440;
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';

export const weightOf = (byte) => ((Math.max(byte, 1) - 1) / BYTE_STEPS) ** 2;

/** Bytes of base64 text that zlib has compressed. */
export async function inflate(text) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser is too old for this page (it lacks DecompressionStream).");
  }
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The colour of every byte, as the 32 bits of a pixel. */
export function makePalette(colours) {
  const palette = new Uint32Array(256);
  for (let byte = 1; byte < 256; byte++) {
    const level = Math.round(weightOf(byte) * 255) * 3;
    palette[byte] = packed(colours[level], colours[level + 1], colours[level + 2]);
  }
  return palette;
}

const packed = (red, green, blue) => (255 << 24) | (blue << 16) | (green << 8) | red;

/** Paint the cells of `view` (row, column, rows, columns; fractions allowed) on width × height pixels. */
export function paint(bytes, keys, view, width, height, palette, masked) {
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const firstOf = (start, step, place) => Math.floor(start + place * step + 1e-9);
  const lastOf = (start, step, place) => Math.max(Math.ceil(start + (place + 1) * step - 1e-9) - 1, 0);
  const rowStep = view.rows / height, columnStep = view.columns / width;
  const first = firstOf(view.column, columnStep, 0);
  const last = Math.min(lastOf(view.column, columnStep, width - 1), keys - 1);
  const lastRow = bytes.length / keys - 1;
  const largest = new Uint8Array(keys);
  let from = -1, to = -1;
  for (let y = 0; y < height; y++) {
    const top = firstOf(view.row, rowStep, y);
    const bottom = rowStep <= 1 ? top : Math.min(lastOf(view.row, rowStep, y), lastRow);
    if (top !== from || bottom !== to) {
      largest.set(bytes.subarray(top * keys + first, top * keys + last + 1), first);
      for (let row = top + 1; row <= bottom; row++) {
        for (let column = first; column <= last; column++) {
          const byte = bytes[row * keys + column];
          if (byte > largest[column]) largest[column] = byte;
        }
      }
      from = top; to = bottom;
    }
    for (let x = 0; x < width; x++) {
      const left = firstOf(view.column, columnStep, x);
      let byte = largest[left];
      if (columnStep > 1) {
        const right = Math.min(lastOf(view.column, columnStep, x), last);
        for (let column = left + 1; column <= right; column++) if (largest[column] > byte) byte = largest[column];
      }
      pixels[y * width + x] = byte ? palette[byte] : masked[(x + y) % 8 < 2 ? 1 : 0];
    }
  }
  return image;
}

function element(parent, name, text = "", className = "") {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

const shown = (number) => (number === 0 ? "≈ 0" : number >= 0.001 ? number.toFixed(3) : number.toExponential(1));
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Where the maps come from: `load(place, layer, head)` promises bytes; each is asked for once. */
function remembering(load) {
  const known = new Map();
  return (...key) => {
    const name = key.join("/");
    if (!known.has(name)) known.set(name, load(...key));
    return known.get(name);
  };
}

/** Show `data` (what `html.page_data` makes) in `root`. */
export async function showMaps(root, data) {
  const palette = makePalette(await inflate(data.colours));
  const masked = data.masked.map((rgb) => packed(...rgb));
  const load = remembering((place, layer, head) => inflate(data.places[place].maps[layer][head]));
  const header = element(root, "header");
  element(header, "h1", data.title);
  element(header, "p", data.subtitle, "subtitle").title = data.subtitle;
  const layout = element(root, "div", "", "layout");
  const names = Object.keys(data.places);
  const count = names.reduce((sum, name) => sum + data.places[name].maps.flat().length, 0);
  const detail = new Detail(data, palette, masked, load);
  if (count > 1) {
    layout.classList.add("has-several");
    const overview = element(layout, "section");
    overview.setAttribute("aria-label", "all maps");
    for (const name of names) showGrid(overview, name, data.places[name], detail, { load, palette, masked });
  }
  layout.append(detail.element);
  showFooter(root, data);
  await detail.choose(names[0], 0, 0);
}

function showGrid(parent, name, place, detail, { load, palette, masked }) {
  const section = element(parent, "section", "", "place");
  element(section, "h2", place.name);
  element(section, "p", axesOf(place), "note");
  const grid = element(section, "div", "", "grid");
  grid.style.gridTemplateColumns = `auto repeat(${place.heads.length}, minmax(0, 220px))`;
  element(grid, "span");
  for (const head of place.heads) element(grid, "span", `head ${head}`, "label");
  place.layers.forEach((layer, row) => {
    element(grid, "span", `layer ${layer}`, "label");
    place.heads.forEach((head, column) => {
      const button = element(grid, "button");
      button.type = "button";
      button.title = `${place.name}, layer ${layer}, head ${head}`;
      button.setAttribute("aria-label", button.title);
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => detail.choose(name, row, column));
      detail.buttons.set([name, row, column].join("/"), button);
      const canvas = element(button, "canvas");
      const queries = place.queries.length, keys = place.keys.length;
      const scale = SMALL_MAP / Math.max(queries, keys);
      canvas.width = Math.max(Math.round(keys * scale), 40);
      canvas.height = Math.max(Math.round(queries * scale), 40);
      whenSeen(canvas, async () => {
        const bytes = await load(name, row, column);
        const view = { row: 0, column: 0, rows: queries, columns: keys };
        const image = paint(bytes, keys, view, canvas.width, canvas.height, palette, masked);
        canvas.getContext("2d").putImageData(image, 0, 0);
      });
    });
  });
}

const axesOf = (place) =>
  `row: ${place.query_axis} · column: ${place.key_axis} · largest weight ${shown(place.largest)}`;

/** Only maps that come into sight are unpacked. */
function whenSeen(target, act) {
  const observer = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) {
      observer.disconnect();
      act();
    }
  }, { rootMargin: "200px" });
  observer.observe(target);
}

function showFooter(root, data) {
  const footer = element(root, "footer");
  element(footer, "p", data.caption, "caption");
  for (const [passed, line] of data.checks) element(footer, "p", line, passed ? "" : "failed");
  element(footer, "p", data.rounding);
  const isPooled = Object.values(data.places).some(({ queries, keys }) => Math.max(queries.length, keys.length) > SMALL_MAP);
  if (isPooled) element(footer, "p", "Small maps have fewer pixels than weights: each pixel shows the maximum of its weights.");
  const help = element(footer, "p");
  for (const [keys, meaning] of [
    [["←", "→", "↑", "↓"], "move the cell"], [["[", "]"], "change the head"], [["{", "}"], "change the layer"],
    [["+", "−", "0"], "zoom (or the wheel; drag to pan)"],
  ]) {
    for (const key of keys) { element(help, "kbd", key); help.append(" "); }
    help.append(` ${meaning}   `);
  }
}

/** The large map: axes, crosshair, readout, zoom. */
class Detail {
  constructor(data, palette, masked, load) {
    Object.assign(this, { data, palette, masked, load, buttons: new Map(), cell: null, drag: null });
    this.element = document.createElement("section");
    this.element.className = "detail";
    this.heading = element(this.element, "h2");
    this.axes = element(this.element, "p", "", "note");
    this.note = element(this.element, "p", "", "note");
    this.canvas = element(this.element, "canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.readout = element(this.element, "p", "", "readout");
    this.readout.setAttribute("role", "status");
    this.scale = element(this.element, "div", "", "scale");
    this.showScale();
    const on = (name, act, options) => this.canvas.addEventListener(name, act, options);
    on("pointermove", (event) => this.pointer(event));
    on("pointerdown", (event) => { this.canvas.setPointerCapture(event.pointerId); this.drag = this.at(event); });
    on("pointerup", () => { this.drag = null; });
    on("pointerleave", () => { this.drag = null; });
    on("dblclick", () => this.reset());
    on("wheel", (event) => this.wheel(event), { passive: false });
    on("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  async choose(name, row, column) {
    this.chosen = [name, row, column];
    for (const [key, button] of this.buttons) {
      button.setAttribute("aria-pressed", String(key === this.chosen.join("/")));
    }
    const bytes = await this.load(name, row, column);
    if (this.chosen[0] !== name || this.chosen[1] !== row || this.chosen[2] !== column) return;
    const changesPlace = this.place !== this.data.places[name];
    this.place = this.data.places[name];
    this.bytes = bytes;
    if (changesPlace) { this.cell = null; this.reset(); }
    const title = `${this.place.name}, layer ${this.place.layers[row]}, head ${this.place.heads[column]}`;
    this.heading.textContent = title;
    this.canvas.setAttribute("aria-label", title);
    this.axes.textContent = this.buttons.size ? "" : axesOf(this.place);
    this.note.textContent = this.facts(row, column);
    this.draw();
    this.tell();
  }

  facts(row, column) {
    const { patterns, entropy } = this.place.statistics;
    const parts = Object.entries(patterns).map(([name, of]) => [name, of.mass[row][column]]);
    const written = parts.filter(([, mass]) => mass !== null).map(([name, mass]) => `${name} ${mass.toFixed(2)}`);
    if (entropy[row][column] !== null) written.push(`entropy ${entropy[row][column].toFixed(2)} of uniform`);
    return `attention on ${written.join(" · ")}`;
  }

  reset() {
    this.view = { row: 0, column: 0, rows: this.place.queries.length, columns: this.place.keys.length };
    this.draw();
  }

  showScale() {
    element(this.scale, "span", "weight 0");
    const ramp = element(this.scale, "canvas");
    ramp.width = 255; ramp.height = 1;
    const image = new ImageData(255, 1), pixels = new Uint32Array(image.data.buffer);
    for (let x = 0; x < 255; x++) pixels[x] = this.palette[1 + Math.round(BYTE_STEPS * Math.sqrt(x / 254))];
    ramp.getContext("2d").putImageData(image, 0, 0);
    element(this.scale, "span", "1");
    this.pooling = element(this.scale, "span");
    if (!this.data.has_masked) return;
    const swatch = element(this.scale, "canvas", "", "swatch");
    swatch.width = 14; swatch.height = 10;
    const whole = { row: 0, column: 0, rows: 1, columns: 1 };
    swatch.getContext("2d").putImageData(paint(new Uint8Array(1), 1, whole, 14, 10, this.palette, this.masked), 0, 0);
    element(this.scale, "span", "masked");
  }

  /** Sizes in CSS pixels, the same at every zoom: margins for the labels, and square cells where there is room. */
  measure(context) {
    const width = Math.max(this.element.clientWidth, 240);
    const widestOf = (tokens) => {
      const longest = tokens.reduce((found, token) => (token.length > found.length ? token : found), "");
      return clamp(context.measureText(longest).width, 30, LONGEST_LABEL);
    };
    const queries = this.place.queries.length, keys = this.place.keys.length;
    const left = Math.ceil(12 + widestOf(this.place.queries));
    const widest = Math.min(width - left - 10, LARGEST_CELL * keys);
    const tallest = Math.min(Math.max(320, window.innerHeight * 0.74), LARGEST_CELL * queries);
    const cell = Math.min(widest / keys, tallest / queries);
    const mapWidth = Math.floor(Math.max(cell * keys, Math.min(widest, 160)));
    const mapHeight = Math.floor(Math.max(cell * queries, Math.min(tallest, 160)));
    const bottom = Math.ceil(14 + Math.max(14, widestOf(this.place.keys)));
    return { width, left, top: 6, mapWidth, mapHeight, bottom };
  }

  draw() {
    if (!this.bytes) return;
    const ratio = window.devicePixelRatio || 1;
    const context = this.canvas.getContext("2d");
    context.font = `12px ${FONT}`;
    const box = (this.box = this.measure(context));
    const height = box.top + box.mapHeight + box.bottom;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const image = paint(
      this.bytes, this.place.keys.length, this.view,
      Math.round(box.mapWidth * ratio), Math.round(box.mapHeight * ratio), this.palette, this.masked,
    );
    const rows = this.view.rows / image.height, columns = this.view.columns / image.width;
    this.pooling.textContent = Math.max(rows, columns) > 1
      ? `each pixel shows the maximum of up to ${Math.ceil(rows)} × ${Math.ceil(columns)} weights` : "";
    context.putImageData(image, Math.round(box.left * ratio), Math.round(box.top * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawAxes(context, box);
    this.still = null;
    this.drawCell(context, box);
  }

  drawAxes(context, box) {
    context.font = `12px ${FONT}`;
    context.fillStyle = colour("--ink");
    context.strokeStyle = colour("--faint");
    context.strokeRect(box.left - 0.5, box.top - 0.5, box.mapWidth + 1, box.mapHeight + 1);
    context.textBaseline = "middle";
    context.textAlign = "right";
    const { view, place } = this;
    for (const [tick, text] of ticks(place.queries, view.row, view.rows, box.mapHeight, place.first_query, 26)) {
      context.fillText(text, box.left - 6, box.top + tick, box.left - 8);
    }
    const labels = ticks(place.keys, view.column, view.columns, box.mapWidth, 0, 44);
    const room = Math.max(box.mapWidth / view.columns, READABLE_CELL) - 3;
    const isUpright = box.mapWidth / view.columns >= READABLE_CELL
      && labels.some(([, text]) => context.measureText(text).width > room);
    for (const [tick, text] of labels) {
      const x = box.left + tick, y = box.top + box.mapHeight + 6;
      if (isUpright) {
        context.save();
        context.translate(x, y);
        context.rotate(-Math.PI / 2);
        context.fillText(text, 0, 0, LONGEST_LABEL);
        context.restore();
      } else {
        context.textAlign = "center";
        context.fillText(text, x, y + 7);
      }
    }
  }

  /** The crosshair is drawn over a copy of the still picture, so that hovering costs next to nothing. */
  drawCell(context, box) {
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    if (!this.still) {
      this.still = new OffscreenCanvas(this.canvas.width, this.canvas.height);
      this.still.getContext("2d").drawImage(this.canvas, 0, 0);
    } else {
      context.clearRect(0, 0, this.canvas.width, this.canvas.height);
      context.drawImage(this.still, 0, 0);
    }
    if (!this.cell) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const cellWidth = box.mapWidth / this.view.columns, cellHeight = box.mapHeight / this.view.rows;
    const x = box.left + (this.cell.column - this.view.column) * cellWidth;
    const y = box.top + (this.cell.row - this.view.row) * cellHeight;
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.mapWidth, box.mapHeight);
    context.clip();
    context.fillStyle = "rgba(102, 112, 133, 0.14)";
    context.fillRect(box.left, y, box.mapWidth, Math.max(cellHeight, 1));
    context.fillRect(x, box.top, Math.max(cellWidth, 1), box.mapHeight);
    context.strokeStyle = "#1d76db";
    context.lineWidth = 2;
    const grow = Math.max(0, 5 - Math.min(cellWidth, cellHeight)) / 2;
    context.strokeRect(x - grow, y - grow, cellWidth + 2 * grow, cellHeight + 2 * grow);
    context.restore();
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

  pointer(event) {
    if (!this.box) return;
    const at = this.at(event);
    if (this.drag) {
      this.show({ ...this.view, row: this.view.row + this.drag.row - at.row, column: this.view.column + this.drag.column - at.column });
    } else if (at.isInside) {
      this.select(Math.floor(at.row), Math.floor(at.column));
    }
  }

  wheel(event) {
    const at = this.at(event);
    if (!at.isInside) return;
    event.preventDefault();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
  }

  zoom(factor, at) {
    const rows = this.view.rows * factor, columns = this.view.columns * factor;
    this.show({
      rows, columns,
      row: at.row - (at.row - this.view.row) * factor, column: at.column - (at.column - this.view.column) * factor,
    });
  }

  /** This part of the map, moved and grown so that it lies within it. */
  show(view) {
    const queries = this.place.queries.length, keys = this.place.keys.length;
    const rows = clamp(view.rows, Math.min(4, queries), queries), columns = clamp(view.columns, Math.min(4, keys), keys);
    this.view = { rows, columns, row: clamp(view.row, 0, queries - rows), column: clamp(view.column, 0, keys - columns) };
    this.draw();
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const [name, row, column] = this.chosen;
    const cell = this.cell ?? { row: 0, column: 0 };
    const turn = (value, count, by) => (value + by + count) % count;
    const { layers, heads } = this.place;
    if (event.key in moves) {
      this.select(cell.row + (this.cell ? moves[event.key][0] : 0), cell.column + (this.cell ? moves[event.key][1] : 0));
    } else if (event.key === "[") this.choose(name, row, turn(column, heads.length, -1));
    else if (event.key === "]") this.choose(name, row, turn(column, heads.length, 1));
    else if (event.key === "{") this.choose(name, turn(row, layers.length, -1), column);
    else if (event.key === "}") this.choose(name, turn(row, layers.length, 1), column);
    else if (event.key === "+" || event.key === "=") this.zoom(0.8, { row: cell.row + 0.5, column: cell.column + 0.5 });
    else if (event.key === "-") this.zoom(1.25, { row: cell.row + 0.5, column: cell.column + 0.5 });
    else if (event.key === "0") this.reset();
    else return;
    event.preventDefault();
  }

  select(row, column) {
    this.cell = {
      row: clamp(row, 0, this.place.queries.length - 1), column: clamp(column, 0, this.place.keys.length - 1),
    };
    const { view } = this;
    const isSeen = this.cell.row + 1 > view.row && this.cell.row < view.row + view.rows
      && this.cell.column + 1 > view.column && this.cell.column < view.column + view.columns;
    if (isSeen) this.drawCell(this.canvas.getContext("2d"), this.box);
    else this.show({ ...view, row: this.cell.row - view.rows / 2, column: this.cell.column - view.columns / 2 });
    this.tell();
  }

  /** What the chosen cell holds: tokens, weight, rank in its row, multiple of equal weights. */
  tell() {
    this.readout.replaceChildren();
    if (!this.cell) {
      this.readout.textContent = "Point at a cell, or move to it with the arrow keys.";
      return;
    }
    const { place, bytes } = this, keys = place.keys.length;
    const row = bytes.subarray(this.cell.row * keys, (this.cell.row + 1) * keys);
    const byte = row[this.cell.column];
    const query = `${place.query_axis} ${this.cell.row + place.first_query}: “${place.queries[this.cell.row]}”`;
    const said = place.answers ? `, answers “${place.answers[this.cell.row]}”` : "";
    const key = `${place.key_axis} ${this.cell.column}: “${place.keys[this.cell.column]}”`;
    if (byte) {
      const allowed = row.reduce((count, other) => count + (other > 0), 0);
      const rank = row.reduce((count, other) => count + (other > byte), 1);
      element(this.readout, "strong", shown(weightOf(byte)));
      this.readout.append(`${(weightOf(byte) * allowed).toFixed(1)} × equal weights · rank ${rank} of ${allowed}`);
    } else element(this.readout, "strong", "masked");
    element(this.readout, "br");
    this.readout.append(`${query}${said} → ${key}`);
  }
}

/** [place in pixels, text] of the labels of one axis: tokens while there is room, else round positions. */
function ticks(tokens, start, count, pixels, firstPosition, apart) {
  const cell = pixels / count, made = [];
  const first = Math.max(Math.floor(start), 0), last = Math.min(Math.ceil(start + count), tokens.length);
  let step = 1;
  if (cell < READABLE_CELL) {
    const wanted = apart / cell, scale = 10 ** Math.floor(Math.log10(Math.max(wanted, 1)));
    step = [1, 2, 5, 10].map((factor) => factor * scale).find((candidate) => candidate >= wanted);
  }
  for (let place = first; place < last; place++) {
    const tick = (place + 0.5 - start) * cell;
    if (tick < 0 || tick > pixels || (step > 1 && (place + firstPosition) % step)) continue;
    made.push([tick, cell >= READABLE_CELL ? tokens[place] : String(place + firstPosition)]);
  }
  return made;
}
