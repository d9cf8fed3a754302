// Panels: title, trust label (fact, cause or hint), export menu, and the command that reproduces the content.

import { button, make } from "./dom.js";
import { failure } from "./states.js";

const TRUST = {
  fact: "Fact: measured on the model as it ran.",
  cause: "Cause: the measured effect of a change in the model or its input.",
  hint: "Hint: a summary that can mislead. Test it before you trust it.",
};

export const trust = (kind) => make(`span.trust.trust-${kind}`, { title: TRUST[kind] }, kind);

/** Make the text of an input, with the pieces that the model does not know marked. */
export const inputText = ({ input_parts: parts = [], about }) => make("span.input-text", {}, parts.length
  ? parts.map(({ text, is_unknown: isUnknown }) => (isUnknown ? make("mark", { title: "The model does not know this piece" }, text) : text)) : about?.input ?? "");

let numbered = 0;

/** Make a term with a sentence that explains it, shown when the term is pointed at or has the focus; Escape hides it. */
export function explained(term, sentence) {
  if (!sentence) return make("span", {}, term);
  const id = `explanation-${++numbered}`;
  const name = make("button.term", { type: "button", "aria-describedby": id }, term);
  const explanation = make("span.explanation", { id, role: "tooltip" }, sentence);
  const made = make("span.explained", {}, name, explanation);
  name.addEventListener("keydown", (event) => { if (event.key === "Escape") made.classList.add("is-closed"); });
  // Fixed in the window, because a table that scrolls would cut it off.
  const place = () => {
    made.classList.remove("is-closed");
    const { left, bottom } = name.getBoundingClientRect();
    explanation.style.left = `${Math.max(8, Math.min(left, window.innerWidth - explanation.offsetWidth - 8))}px`;
    explanation.style.top = `${bottom + 4}px`;
  };
  for (const shown of ["pointerenter", "focusin"]) made.addEventListener(shown, place);
  return made;
}

/** Make a panel. `files` maps an export format to a function that returns a promise of a Blob. */
export function panel(title, { trust: kind = null, about = null, files = {}, name = "glassformer", command = null, tools = [] } = {}, ...children) {
  const made = make("section.panel", { "aria-label": title },
    make("header", {},
      make("h2", {}, title), kind && trust(kind),
      make("div.tools", {}, ...tools, Object.keys(files).length ? exportMenu(files, name) : null)),
    about && make("p.note", {}, about),
    ...children);
  made.command = commandLine(command);
  made.append(made.command);
  return made;
}

function exportMenu(files, name) {
  const menu = make("details.menu", {}, make("summary", {}, "Export"),
    make("div.menu-list", {}, Object.entries(files).map(([format, give]) =>
      button(format.toUpperCase(), async (event) => {
        const pressed = event.currentTarget;
        pressed.disabled = true;
        try {
          download(await give(), `${name}.${format}`);
          menu.open = false;
        } catch (error) {
          menu.after(failure(error));
        } finally {
          pressed.disabled = false;
        }
      }, { data: { format } }))));
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
    event.stopPropagation();
  });
  menu.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !menu.contains(event.relatedTarget)) menu.open = false;
  });
  return menu;
}

/** Quote words for a shell. */
export const shellWords = (words) => words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ");

/** Return the command of a report, which draws the curves of existing runs. */
export const reportCommand = (studio, names) =>
  shellWords(["glassformer", "report", ...names.map((name) => `${studio.runs_shown}/${name}`), "--out", "report.html", ...studio.plugin_words]);

/** Show the terminal command for the same result, with a button that copies it. */
export function commandLine(text) {
  const code = make("code");
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(code.textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }, { className: "quiet", "aria-label": "Copy the command" });
  const made = make("div.command", { hidden: true }, make("span.prompt", { "aria-hidden": "true" }, "$"), code, copy);
  made.setText = (line) => {
    made.hidden = !line;
    code.textContent = line ?? "";
    code.title = line ?? "";
  };
  made.setText(text);
  return made;
}

export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const anchor = make("a", { href: address, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Encode rows as CSV; a cell that a spreadsheet would read as a formula is escaped. */
export function csv(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n"), "\r\n"], { type: "text/csv;charset=utf-8" });
}

/** Make a standalone SVG file, which includes the styles of the page. */
export function svgBlob(svg) {
  const copy = svg.cloneNode(true);
  const { width, height } = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const originals = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((node, index) => {
    const style = getComputedStyle(originals[index]);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family", "opacity", "text-anchor"]) {
      const value = style.getPropertyValue(name);
      if (value) node.setAttribute(name, value);
    }
    node.removeAttribute("class");
  });
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  ground.setAttribute("width", width);
  ground.setAttribute("height", height);
  ground.setAttribute("fill", getComputedStyle(document.documentElement).getPropertyValue("--surface").trim());
  copy.prepend(ground);
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

export async function pngBlob(svg, times = 2) {
  const { width, height } = svg.viewBox.baseVal;
  const address = URL.createObjectURL(svgBlob(svg));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = make("canvas", { width: width * times, height: height * times });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Return the export files of an SVG: `figure()` is the drawing, `rows()` its numbers. */
export const figureFiles = (figure, rows) => ({
  png: () => whileShown(figure(), pngBlob), svg: () => whileShown(figure(), svgBlob), csv: async () => csv(rows()),
});

/** Insert a drawing into the page, off screen, while `act` reads its computed styles. */
async function whileShown(svg, act) {
  if (svg.isConnected) return act(svg);
  svg.classList.add("is-offscreen");
  document.body.append(svg);
  try {
    return await act(svg);
  } finally {
    svg.remove();
  }
}
