// View for a new run: a list of presets, and a form with all config options that shows errors at their fields.

import { ask } from "./api.js";
import { button, make, option, words } from "./dom.js";
import { commandLine } from "./panel.js";
import { PREVIEWED, previewPanel } from "./preview.js";
import { go, link, remember } from "./route.js";
import { failure, fill, skeleton } from "./states.js";

const CHECK_AFTER = 350;
/** Groups that are expanded by default. The others contain options that are seldom changed. */
const isOpen = (group) => ["", "model", "task", "task.data", "task.data.columns"].includes(group);

export async function showNew(root, { params, studio, signal }) {
  const source = params.get("source") ?? studio.presets[0].name;
  const form = make("div");
  root.replaceChildren(
    make("div.view-head", {}, make("div", {}, make("p.crumb", {}, make("a", { href: link("runs") }, "← Runs")), make("h1", {}, "New run"),
      make("p.muted", {}, "Choose a preset and change its options. The training continues even if you close the studio."))),
    make("div.new-layout", {}, make("nav.presets", { "aria-label": "Presets" }, studio.presets.map((preset) => make("a.preset", {
      href: link("new", null, { source: preset.name }), "aria-current": preset.name === source ? "true" : null,
    }, make("strong", {}, preset.name), make("span.note", {}, preset.sentence)))), form));
  const preset = studio.presets.find(({ name }) => name === source);
  await fill(form, skeleton(12, "Loading the form"), async () => {
    const document = await ask(`form?source=${encodeURIComponent(source)}`, { signal });
    return new RunForm(source, preset, document, params, signal).element;
  }, signal);
  const chosen = root.querySelector(".preset[aria-current]");
  if (chosen) chosen.parentElement.scrollTop = chosen.offsetTop - chosen.parentElement.clientHeight / 2; // without scrolling the page
}

class RunForm {
  constructor(source, preset, document, params, signal) {
    Object.assign(this, { source, signal, values: valuesIn(params), errors: [], fields: document.fields, preview: make("div.previews"), names: make("datalist", { id: "columns" }), fileErrors: [] });
    this.groups = make("div.groups");
    this.command = commandLine(document.command ?? preset?.command);
    this.start = make("button.primary", { type: "submit" }, "Start training");
    this.otherErrors = make("div");
    this.expected = make("p.note", {}, [preset?.expected && `Expected: ${preset.expected}`, preset?.time && `Time: ${preset.time}`].filter(Boolean).join(" · "));
    this.element = make("form.run-form", { noValidate: true, onsubmit: (event) => { event.preventDefault(); this.startTraining(); } },
      make("div.about-preset", {}, make("h2", {}, source), make("p", {}, preset?.about ?? ""),
        this.expected),
      this.groups, this.names, make("div.form-foot", {}, this.otherErrors, make("div.form-acts", {}, this.command, button("Undo changes", () => this.undo()), this.start)));
    this.show();
    if (Object.keys(this.values).length) this.check();
    else this.showPreview();
  }

  undo() {
    this.values = {};
    this.save();
    this.check();
  }

  save() {
    remember({ set: Object.keys(this.values).length ? JSON.stringify(this.values) : null });
  }

  /** Show the fields from the server's reply, and keep focus and selection. */
  show() {
    this.expected.hidden = Boolean(this.values[`${PREVIEWED}.train`]); // it is about the preset's own data
    const open = new Map([...this.groups.querySelectorAll("details")].map((group) => [group.dataset.group, group.open]));
    const focused = document.activeElement?.name, selection = document.activeElement?.selectionStart;
    const groups = new Map();
    for (const field of this.fields) {
      if (!groups.has(field.group)) groups.set(field.group, []);
      groups.get(field.group).push(field);
    }
    this.groups.replaceChildren(...parentsFirst(groups).map((name) => {
      const fields = groups.get(name);
      const changed = fields.filter(({ path }) => path in this.values).length;
      const wrong = fields.some(({ path }) => this.errorAt(path));
      return make("details.group", { open: wrong || (open.get(name) ?? isOpen(name)), data: { group: name } },
        make("summary", {}, make("span", {}, words(name || "general").split(".").join(" · ")), changed ? make("span.chip", {}, `${changed} changed`) : null, wrong ? make("span.chip.alarm", {}, "has an error") : null),
        make("div.group-fields", {}, fields.map((field) => this.row(field))));
    }));
    const last = [...this.groups.children].findLast((group) => group.dataset.group.startsWith(PREVIEWED));
    last?.after(this.preview);
    if (focused) {
      const again = this.groups.querySelector(`[name="${CSS.escape(focused)}"]`);
      again?.focus();
      if (selection !== null && again?.setSelectionRange && again.type === "text") again.setSelectionRange(selection, selection);
    }
  }

  errorAt(path) {
    return [...this.errors, ...this.fileErrors].find((error) => error.field === path);
  }

  row(field) {
    const error = this.errorAt(field.path), id = `field-${field.path}`;
    const control = this.control(field, id);
    control.setAttribute("aria-describedby", `${id}-about${error ? ` ${id}-error` : ""}`);
    if (error) control.setAttribute("aria-invalid", "true");
    return make(`div.form-field${field.path in this.values ? ".is-changed" : ""}${error ? ".is-wrong" : ""}`, { data: { path: field.path } },
      make("label", { htmlFor: id, title: field.path }, field.label ?? field.path.split(".").at(-1)),
      make("div", {}, control,
        error ? make("p.field-error", { id: `${id}-error` }, [error.message, error.hint, error.allowed?.length && `allowed: ${[error.allowed].flat().join(", ")}`].filter(Boolean).join(" · ")) : null,
        make("p.note", { id: `${id}-about` }, field.description ?? ""),
        field.about_choice ? make("p.note.about-choice", {}, make("strong", {}, option(this.valueOf(field))), `: ${field.about_choice}`) : null));
  }

  valueOf(field) {
    return field.path in this.values ? this.values[field.path] : field.value;
  }

  control(field, id) {
    const value = this.valueOf(field);
    const common = { id, name: field.path };
    if (field.type === "boolean" && field.is_optional) return this.select(field, common, [[true, "yes"], [false, "no"]], value);
    if (field.type === "boolean") {
      const box = make("input", { ...common, type: "checkbox", checked: value === true, onchange: () => this.change(field, box.checked) });
      return box;
    }
    if (field.type === "list" && field.choices?.length) return this.boxes(field, id, value);
    if (field.choices?.length) return this.select(field, common, field.choices.map((of) => [of, option(of)]), value);
    const input = make("input", {
      ...common, type: "text", inputMode: field.type === "integer" ? "numeric" : field.type === "number" ? "decimal" : "text",
      value: value === null || value === undefined ? "" : option(value), placeholder: field.is_optional ? unsetText(field) : option(field.default ?? ""),
      autocomplete: "off", spellcheck: false, oninput: () => this.change(field, parseInput(input.value, field)),
    });
    if (field.type === "columns") input.setAttribute("list", "columns");
    return input;
  }

  /** Make a select of `[value, text]` pairs. An option that may be unset has an empty choice, which states what that means. */
  select(field, common, options, value) {
    const isUnset = value === null || value === undefined;
    const offered = [...(field.is_optional || isUnset ? [[null, field.is_optional ? unsetText(field) : ""]] : []), ...options];
    const select = make(`select${isUnset ? ".is-unset" : ""}`, { ...common, onchange: () => this.change(field, JSON.parse(select.value)) },
      offered.map(([of, text]) => make("option", { value: JSON.stringify(of), selected: of === (value ?? null) }, text)));
    return select;
  }

  /** Make one checkbox per choice. */
  boxes(field, id, value) {
    const boxes = field.choices.map((of) => make("input", { type: "checkbox", name: `${field.path}.${of}`, checked: value?.includes(of) }));
    const chosen = () => field.choices.filter((_, index) => boxes[index].checked);
    const change = () => this.change(field, chosen());
    for (const box of boxes) box.addEventListener("change", change);
    return make("div.boxes", { id, role: "group" }, field.choices.map((of, index) => make("label", {}, boxes[index], option(of))));
  }

  change(field, value) {
    if (JSON.stringify(value) === JSON.stringify(field.value) && !(field.path in this.values)) return;
    this.values[field.path] = value;
    this.save();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), CHECK_AFTER);
  }

  async check() {
    const asked = JSON.stringify(this.values);
    try {
      const reply = await ask("form", { body: { source: this.source, values: this.values }, signal: this.signal });
      if (asked !== JSON.stringify(this.values)) return;
      Object.assign(this, { fields: reply.fields ?? this.fields, errors: reply.errors ?? [] });
      this.command.setText(reply.command);
      this.otherErrors.replaceChildren();
    } catch (error) {
      if (this.signal.aborted) return;
      this.showErrors(error);
    }
    this.show();
    this.showPreview();
  }

  /** Show the first rows of the data files, and the errors of reading them at their fields. */
  async showPreview() {
    const options = this.fields.filter(({ path }) => path.startsWith(PREVIEWED)), state = JSON.stringify(options.map(({ value }) => value));
    if (state === this.previewed) return;
    this.previewed = state;
    if (!options.some(({ is_required: isRequired, value }) => isRequired && value)) {
      this.preview.replaceChildren();
      this.fileErrors = [];
      return;
    }
    try {
      const found = await ask("preview", { body: { source: this.source, values: this.values }, signal: this.signal });
      if (this.previewed !== state) return;
      this.fileErrors = found.errors;
      this.preview.replaceChildren(...found.files.map(previewPanel));
      const names = (found.files[0]?.columns ?? []).filter(({ column }) => column !== null).map(({ column, name }) => name || String(column));
      this.names.replaceChildren(...names.map((value) => make("option", { value })));
    } catch (error) {
      if (this.signal.aborted || this.previewed !== state) return;
      this.fileErrors = [];
      this.preview.replaceChildren(failure(error));
    }
    this.show();
  }

  /** Show errors at their fields, and errors without a field above the button. */
  showErrors(error) {
    const known = new Set(this.fields.map(({ path }) => path));
    const errors = (error.errors?.length ? error.errors : [error]).map((of) => ({ ...of, message: of.message, field: of.field ?? of.path }));
    this.errors = errors.filter(({ field }) => known.has(field));
    const others = errors.filter(({ field }) => !known.has(field));
    this.otherErrors.replaceChildren(...others.map((of) => failure(of)));
  }

  async startTraining() {
    this.start.disabled = true;
    this.start.textContent = "Starting…";
    try {
      const { run } = await ask("runs", { body: { source: this.source, values: this.values }, signal: this.signal });
      go("run", run);
    } catch (error) {
      if (this.signal.aborted) return;
      this.showErrors(error);
      this.show();
      this.groups.querySelector("[aria-invalid]")?.focus();
    } finally {
      this.start.disabled = false;
      this.start.textContent = "Start training";
    }
  }
}

/** Describe an unset option: "unset: no limit". */
const unsetText = (field) => (field.unset ? `unset: ${field.unset}` : "unset");

/** Order the groups so that a section comes before its subsections. */
function parentsFirst(groups) {
  const ordered = new Set();
  for (const name of groups.keys()) {
    const parts = name.split(".");
    parts.map((_, last) => parts.slice(0, last + 1).join(".")).filter((of) => groups.has(of)).forEach((of) => ordered.add(of));
  }
  return [...ordered];
}

function valuesIn(params) {
  try {
    const found = JSON.parse(params.get("set") ?? "{}");
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

/** Convert typed text to the type of its field; invalid text is sent as it is, and the server reports the error. */
function parseInput(text, field) {
  const bare = text.trim();
  if (bare === "" && field.is_optional) return null;
  if (field.type === "integer" && /^[+-]?\d+$/.test(bare)) return Number(bare);
  if (field.type === "number" && bare && Number.isFinite(Number(bare))) return Number(bare);
  return text;
}
