// A new run: a preset, and a form that is made from the config tree. Errors stand at their fields.

import { ask } from "./api.js";
import { button, make, option, words } from "./dom.js";
import { commandLine } from "./panel.js";
import { go, link, remember } from "./route.js";
import { failure, fill, skeleton } from "./states.js";

const CHECK_AFTER = 350;
/** The groups that are open at first: the others hold what is seldom changed. */
const OPEN = new Set(["task", "model", "general", "seed", ""]);

export async function showNew(root, { params, studio, signal }) {
  const what = params.get("what") ?? studio.presets[0].name;
  const form = make("div");
  root.replaceChildren(
    make("div.view-head", {}, make("div", {}, make("p.crumb", {}, make("a", { href: link("runs") }, "← Runs")), make("h1", {}, "New run"),
      make("p.muted", {}, "Choose what to learn; change what you like. Training goes on if the studio is closed."))),
    make("div.new-layout", {}, make("nav.presets", { "aria-label": "Presets" }, studio.presets.map((preset) => make("a.preset", {
      href: link("new", null, { what: preset.name }), "aria-current": preset.name === what ? "true" : null,
    }, make("strong", {}, preset.name), make("span.note", {}, firstSentence(preset.about))))), form));
  const preset = studio.presets.find(({ name }) => name === what);
  await fill(form, skeleton(12, "Loading the form"), async () => {
    const document = await ask(`form?what=${encodeURIComponent(what)}`, { signal });
    return new RunForm(what, preset, document, params, signal).element;
  }, signal);
  const chosen = root.querySelector(".preset[aria-current]");
  if (chosen) chosen.parentElement.scrollTop = chosen.offsetTop - chosen.parentElement.clientHeight / 2; // the page stays where it is
}

const firstSentence = (text) => /^.*?[.:](\s|$)/.exec(text)?.[0].replace(/:\s*$/, ".") ?? text;

class RunForm {
  constructor(what, preset, document, params, signal) {
    Object.assign(this, { what, signal, values: valuesIn(params), errors: [], fields: document.fields });
    this.groups = make("div.groups");
    this.command = commandLine(document.command ?? preset?.command);
    this.start = make("button.primary", { type: "submit" }, "Start training");
    this.trouble = make("div");
    this.element = make("form.run-form", { noValidate: true, onsubmit: (event) => { event.preventDefault(); this.begin(); } },
      make("div.about-preset", {}, make("h2", {}, what), make("p", {}, preset?.about ?? ""),
        make("p.note", {}, [preset?.expected && `Expected: ${preset.expected}`, preset?.time && `Time: ${preset.time}`].filter(Boolean).join(" · "))),
      this.groups, make("div.form-foot", {}, this.trouble, make("div.form-acts", {}, this.command, button("Undo changes", () => this.undo()), this.start)));
    this.show();
    if (Object.keys(this.values).length) this.check();
  }

  undo() {
    this.values = {};
    this.keep();
    this.check();
  }

  keep() {
    remember({ set: Object.keys(this.values).length ? JSON.stringify(this.values) : null });
  }

  /** The fields as the server has them; what one is typing in stays. */
  show() {
    const open = new Map([...this.groups.querySelectorAll("details")].map((group) => [group.dataset.group, group.open]));
    const focused = document.activeElement?.name, selection = document.activeElement?.selectionStart;
    const groups = new Map();
    for (const field of this.fields) {
      if (!groups.has(field.group)) groups.set(field.group, []);
      groups.get(field.group).push(field);
    }
    this.groups.replaceChildren(...outerFirst(groups).map((name) => {
      const fields = groups.get(name);
      const changed = fields.filter(({ path }) => path in this.values).length;
      const wrong = fields.some(({ path }) => this.errorAt(path));
      return make("details.group", { open: wrong || (open.get(name) ?? OPEN.has(name)), data: { group: name } },
        make("summary", {}, make("span", {}, words(name || "general").split(".").join(" · ")), changed ? make("span.chip", {}, `${changed} changed`) : null, wrong ? make("span.chip.alarm", {}, "needs a change") : null),
        make("div.group-fields", {}, fields.map((field) => this.row(field))));
    }));
    if (focused) {
      const again = this.groups.querySelector(`[name="${CSS.escape(focused)}"]`);
      again?.focus();
      if (selection !== null && again?.setSelectionRange && again.type === "text") again.setSelectionRange(selection, selection);
    }
  }

  errorAt(path) {
    return this.errors.find((error) => error.path === path);
  }

  row(field) {
    const error = this.errorAt(field.path), id = `field-${field.path}`;
    const control = this.control(field, id);
    control.setAttribute("aria-describedby", `${id}-about${error ? ` ${id}-error` : ""}`);
    if (error) control.setAttribute("aria-invalid", "true");
    return make(`div.form-field${field.path in this.values ? ".is-changed" : ""}${error ? ".is-wrong" : ""}`, { data: { path: field.path } },
      make("label", { htmlFor: id, title: field.path }, field.label ?? field.path.split(".").at(-1)),
      make("div", {}, control,
        error ? make("p.field-error", { id: `${id}-error` }, [error.problem, error.remedy, error.allowed?.length && `allowed: ${[error.allowed].flat().join(", ")}`].filter(Boolean).join(" · ")) : null,
        make("p.note", { id: `${id}-about` }, field.description ?? "")));
  }

  control(field, id) {
    const value = field.path in this.values ? this.values[field.path] : field.value;
    const common = { id, name: field.path };
    if (field.type === "boolean") {
      const box = make("input", { ...common, type: "checkbox", checked: value === true, onchange: () => this.change(field, box.checked) });
      return box;
    }
    if (field.type === "list" && field.choices?.length) return this.boxes(field, id, value);
    if (field.choices?.length) {
      const select = make("select", { ...common, onchange: () => this.change(field, JSON.parse(select.value)) },
        field.choices.map((of) => make("option", { value: JSON.stringify(of), selected: of === value }, of === null ? "none" : option(of))));
      return select;
    }
    const input = make("input", {
      ...common, type: "text", inputMode: field.type === "integer" ? "numeric" : field.type === "number" ? "decimal" : "text",
      value: value === null || value === undefined ? "" : option(value), placeholder: field.default === null ? "none" : option(field.default),
      autocomplete: "off", spellcheck: false, oninput: () => this.change(field, typed(input.value, field)),
    });
    return input;
  }

  /** Some of several choices: a box each. */
  boxes(field, id, value) {
    const boxes = field.choices.map((of) => make("input", { type: "checkbox", name: `${field.path}.${of}`, checked: value?.includes(of) }));
    const chosen = () => field.choices.filter((_, place) => boxes[place].checked);
    const change = () => this.change(field, chosen());
    for (const box of boxes) box.addEventListener("change", change);
    return make("div.boxes", { id, role: "group" }, field.choices.map((of, place) => make("label", {}, boxes[place], option(of))));
  }

  change(field, value) {
    if (JSON.stringify(value) === JSON.stringify(field.original ?? field.value) && !(field.path in this.values)) return;
    this.values[field.path] = value;
    this.keep();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), CHECK_AFTER);
  }

  async check() {
    const asked = JSON.stringify(this.values);
    try {
      const reply = await ask("form", { body: { what: this.what, values: this.values }, signal: this.signal });
      if (asked !== JSON.stringify(this.values)) return;
      Object.assign(this, { fields: reply.fields ?? this.fields, errors: reply.errors ?? [] });
      this.command.say(reply.command);
      this.trouble.replaceChildren();
    } catch (error) {
      if (this.signal.aborted) return;
      this.blame(error);
    }
    this.show();
  }

  /** Errors that have a field stand there, the others above the button. */
  blame(error) {
    const known = new Set(this.fields.map(({ path }) => path));
    const errors = (error.errors?.length ? error.errors : [error]).map((of) => ({ ...of, path: of.path ?? of.place, problem: of.problem, remedy: of.remedy, allowed: of.allowed }));
    this.errors = errors.filter(({ path }) => known.has(path));
    const homeless = errors.filter(({ path }) => !known.has(path));
    this.trouble.replaceChildren(...homeless.map((of) => failure({ ...of, place: of.path })));
  }

  async begin() {
    this.start.disabled = true;
    this.start.textContent = "Starting…";
    try {
      const { run } = await ask("runs", { body: { what: this.what, values: this.values }, signal: this.signal });
      go("run", run);
    } catch (error) {
      if (this.signal.aborted) return;
      this.blame(error);
      this.show();
      this.groups.querySelector("[aria-invalid]")?.focus();
    } finally {
      this.start.disabled = false;
      this.start.textContent = "Start training";
    }
  }
}

/** The names of groups, in their order, but what a part itself has stands before the parts that it has. */
function outerFirst(groups) {
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

/** What was typed as a value of its kind; what cannot be one goes as it is, and the server says what is wrong. */
function typed(text, field) {
  const bare = text.trim();
  if (bare === "" && field.is_optional) return null;
  if (field.type === "integer" && /^[+-]?\d+$/.test(bare)) return Number(bare);
  if (field.type === "number" && bare && Number.isFinite(Number(bare))) return Number(bare);
  return text;
}
