// Preview of a data file: its first rows, with the role of each column, and its classes.

import { make, number } from "./dom.js";
import { panel } from "./panel.js";

/** Section of the config whose files are previewed. */
export const PREVIEWED = "task.data";

export function previewPanel({ split, file, notes, columns, rows, examples, is_whole: isWhole, classes, num_classes: count }) {
  const counted = `${isWhole ? "" : "the first "}${number(examples)} ${examples === 1 ? "example" : "examples"}`;
  const made = panel(`Preview of ${split}`, {},
    make("p.note", {}, `${file}: ${counted}`),
    make("ul.preview-notes", {}, notes.map((note) => make(note.startsWith("WARNING") ? "li.alarm" : "li", {}, note))),
    make("div.scroll", {}, make("table.preview", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "line"), columns.map(heading))),
      make("tbody", {}, rows.map(({ line, values }) => make("tr", {}, make("td.number.muted", {}, String(line)),
        values.map((value, index) => make(columns[index].role ? "td" : "td.is-ignored", {}, value)))))),
    ),
    classes.length ? make("div.chips.classes", {}, make("span.note", {}, `${number(count)} ${count === 1 ? "class" : "classes"}:`),
      classes.map(({ label, count: of }) => make("span.chip", {}, label || "∅", make("span.muted", {}, ` ${number(of)}`))),
      count > classes.length ? make("span.chip.more", {}, `and ${number(count - classes.length)} more`) : null) : null);
  made.dataset.split = split;
  return made;
}

/** Make the head of a column: its name or number, and its role. */
const heading = ({ column, name, role }) => make(role ? "th" : "th.is-ignored", { scope: "col" },
  make("span.role", {}, role || "ignored"), column === null ? "" : ` ${name || `column ${column}`}`);
