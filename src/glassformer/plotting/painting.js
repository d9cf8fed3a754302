// Convert the bytes of maps to pixels. All pages paint attention with this file.
//
// A map has one byte per cell, as made by `to_bytes` of attention.py: 0 is masked, 1 … 255 are the square root
// of the weight. A difference of two maps has one byte per cell too. If there are more cells than pixels, a pixel
// shows the largest byte of its cells, so that no large weight is lost.

const BYTE_STEPS = 254;
const DIFFERENCE_STEPS = 127;

/** Blue (A larger) over the colour of weight 0 to orange (B larger); safe for all forms of colour blindness. */
const DIVERGING = {
  light: ["#0b3c6f", "#2f7fbf", "#9ccbe8", "#fbfbfc", "#fbc48a", "#e0771f", "#7f3300"],
  dark: ["#c5e6ff", "#5fb0ea", "#2a5f8f", "#211f2a", "#8f4a16", "#ee8b35", "#ffe0bd"],
};

const SYSTEM = matchMedia("(prefers-color-scheme: dark)");

/** Return true if the page is dark, by its own choice or else by the system's. */
export function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : SYSTEM.matches;
}

/** Call `act` when the page becomes light or dark, until the returned function is called. */
export function onTheme(act) {
  const observer = new MutationObserver(act);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  SYSTEM.addEventListener("change", act);
  return () => { observer.disconnect(); SYSTEM.removeEventListener("change", act); };
}

/** Return a scale whose colours follow the theme of the page. */
const themed = (light, dark, rest) => ({
  ...rest, light, dark,
  get palette() { return (isDark() ? dark : light).palette; },
  get masked() { return (isDark() ? dark : light).masked; },
});

const packed = (red, green, blue) => (255 << 24) | (blue << 16) | (green << 8) | red;

export const weightOf = (byte) => ((Math.max(byte, 1) - 1) / BYTE_STEPS) ** 2;

const byteOf = (weight) => 1 + Math.round(BYTE_STEPS * Math.sqrt(weight));

/** Decode base64 text and decompress it with zlib. */
export async function inflate(text) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser is too old for this page (it lacks DecompressionStream).");
  }
  const compressed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Read the scale of weights from `scales` of page.py: 256 colours from weight 0 to 1, background and stripe of masked cells. */
export async function readScale({ light, dark }) {
  const read = async ({ colours, masked }) => ({ palette: weightPalette(await inflate(colours)), masked: masked.map((rgb) => packed(...rgb)) });
  return themed(await read(light), await read(dark), { from: 0, to: 1, ends: ["weight 0", "1"], valueOf: weightOf, byteOf, isDifference: false });
}

function weightPalette(colours) {
  const palette = new Uint32Array(256);
  for (let byte = 1; byte < 256; byte++) {
    const level = Math.round(weightOf(byte) * 255) * 3;
    palette[byte] = packed(colours[level], colours[level + 1], colours[level + 2]);
  }
  return palette;
}

/** Decode a byte of `differenceBytes` to B's weight minus A's: odd bytes are positive, even ones negative. */
export const differenceOf = (byte) =>
  byte < 2 ? 0 : (byte % 2 ? 1 : -1) * (Math.floor(byte / 2) / DIFFERENCE_STEPS) ** 2;

const differenceByte = (value) => {
  const size = Math.round(DIFFERENCE_STEPS * Math.sqrt(Math.abs(value)));
  return size === 0 ? 1 : 2 * size + (value > 0 ? 1 : 0);
};

/** Encode B minus A for each cell; a larger byte is a larger absolute difference. */
export function differenceBytes(bytesOfA, bytesOfB) {
  const made = new Uint8Array(bytesOfA.length);
  for (let cell = 0; cell < made.length; cell++) {
    const first = bytesOfA[cell], second = bytesOfB[cell];
    made[cell] = first || second ? differenceByte(weightOf(second) - weightOf(first)) : 0;
  }
  return made;
}

/** Scale of differences from −1 to 1, with the masked colours of the scale `weights`. */
export function differenceScale({ light, dark }) {
  const of = (theme, { masked }) => ({ palette: differencePalette(DIVERGING[theme]), masked });
  return themed(of("light", light), of("dark", dark), { from: -1, to: 1, ends: ["A −1", "+1 B"], valueOf: differenceOf, byteOf: differenceByte, isDifference: true });
}

function differencePalette(names) {
  const corners = names.map((name) => [1, 3, 5].map((index) => parseInt(name.slice(index, index + 2), 16)));
  const palette = new Uint32Array(256);
  for (let byte = 1; byte < 256; byte++) {
    const way = ((differenceOf(byte) + 1) / 2) * (corners.length - 1);
    const below = Math.min(Math.floor(way), corners.length - 2), part = way - below;
    palette[byte] = packed(...[0, 1, 2].map((channel) =>
      Math.round(corners[below][channel] * (1 - part) + corners[below + 1][channel] * part)));
  }
  return palette;
}

/** Paint the cells of `view` (row, column, rows, columns; fractions allowed) on width × height pixels. */
export function paint(bytes, keys, view, width, height, { palette, masked }) {
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const firstOf = (start, step, index) => Math.floor(start + index * step + 1e-9);
  const lastOf = (start, step, index) => Math.max(Math.ceil(start + (index + 1) * step - 1e-9) - 1, 0);
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

/** Paint the colour bar, one pixel per step from the scale's lowest value to its highest. */
export function paintRamp(canvas, scale) {
  canvas.width = 255; canvas.height = 1;
  const image = new ImageData(255, 1), pixels = new Uint32Array(image.data.buffer);
  for (let x = 0; x < 255; x++) {
    pixels[x] = scale.palette[scale.byteOf(scale.from + (scale.to - scale.from) * (x / 254))];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Paint a sample of masked cells. */
export function paintMasked(canvas, scale) {
  canvas.width = 14; canvas.height = 10;
  const whole = { row: 0, column: 0, rows: 1, columns: 1 };
  canvas.getContext("2d").putImageData(paint(new Uint8Array(1), 1, whole, 14, 10, scale), 0, 0);
}
