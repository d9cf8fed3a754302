// Bar above the inspection views, in which the user chooses run, checkpoint and input.

import { ask, path, prepare } from "./api.js";
import { button, choice, field, make } from "./dom.js";
import { go, link, wholeNumber } from "./route.js";
import { attempt } from "./states.js";
import { MapDetail } from "./viewer.js";

export const describeRun = (name, signal) => ask(`runs/${path(name)}`, { signal });

/** Load a run, and wait until the server has loaded its model too. */
export async function loadRun(name, signal) {
  for (;;) {
    const about = await describeRun(name, signal);
    if (!about.is_pending) return about;
    await new Promise((resolve) => setTimeout(resolve, 300));
    signal.throwIfAborted();
  }
}

/** Return false for trainings that are still starting, or that failed before they created a run. */
export const isRun = ({ status }) => status !== "starting" && status !== "failed";

export const runNames = async (signal) => (await ask("runs", { signal })).runs.filter(isRun).map((run) => run.name);

/** Read the attention request from the URL; `node` is the number of a beam-search node. */
export const requestOf = (params) => ({
  input: params.get("input") || null, checkpoint: params.get("checkpoint") || null, untrained: params.get("untrained") === "1",
  decoding: params.get("decoding") ? { kind: params.get("decoding") } : null, node: wholeNumber(params, "node"),
});

export function checkpointOptions(about) {
  const tagged = about.checkpoints.map(({ name, step, is_best: isBest, is_latest: isLatest }) =>
    [name, `step ${step.toLocaleString("en-US")}${isBest ? " · best" : ""}${isLatest ? " · latest" : ""}`]);
  return [["", "best"], ...tagged];
}

/** Make the bar. `onRun(name)` is called for another run, `onSubmit({checkpoint, input})` for another checkpoint or input. */
export function subjectBar({ about, runs, params, extra = [], hasCheckpoint = true, submit = "Show", onRun, onSubmit }) {
  const examples = about.examples ?? [];
  const list = make("datalist", { id: "examples" }, examples.map((text) => make("option", { value: text })));
  const input = make("input.mono", {
    type: "text", name: "input", value: params.get("input") ?? "", placeholder: examples[0] ?? "the first test example",
    autocomplete: "off", spellcheck: false, maxLength: 20_000,
  });
  input.setAttribute("list", "examples");
  const checkpoint = choice(checkpointOptions(about), params.get("checkpoint") ?? "", () => form.requestSubmit());
  const form = make("form.subject", {
    onsubmit: (event) => { event.preventDefault(); onSubmit({ input: input.value, ...(hasCheckpoint ? { checkpoint: checkpoint.value } : {}) }); },
  },
  field("Run", choice(runs.map((name) => [name, name]), about.name, onRun)),
  hasCheckpoint ? field("Checkpoint", checkpoint) : null,
  field("Input", input, "grow"), list,
  ...extra,
  make("button.primary", { type: "submit" }, submit),
  examples.length ? button("Example", () => {
    const at = examples.indexOf(input.value);
    input.value = examples[(at + 1) % examples.length];
    form.requestSubmit();
  }, { title: "Use the next example from the test set" }) : null);
  return form;
}

/**
 * Show a view for another input or checkpoint. `requests(params)` are the requests of the view, `[path, body]`. They are
 * sent first: if one is refused, the last result in `body`, which is for the input `shown`, stays with the error above it.
 */
export async function goIfAccepted(view, name, params, { requests, body, shown, signal }) {
  const target = link(view, name, params);
  const asked = requests(new URLSearchParams(target.split("?")[1] ?? ""));
  const about = shown ? `the input “${shown}”` : "the first test example";
  if (await attempt(body, () => prepare(asked, signal), about, signal)) go(view, name, params);
}

/** Handle the keys of the map everywhere in the page, except while the user types. */
export function listenToKeys(details, signal) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, textarea, select, dialog, .chart, .menu")) return;
    const isMove = event.key.startsWith("Arrow");
    if (isMove && event.target.closest?.("button, a, summary")) return;
    const detail = details();
    if (detail?.key(event.key)) event.preventDefault();
  }, { signal });
}

/** Make a large map that is closed with its view. */
export function makeDetail(source, signal, options = {}) {
  const detail = new MapDetail(source, { notes: () => [], ...options });
  signal.addEventListener("abort", () => detail.close(), { once: true });
  return detail;
}

/** Read attention site, layer and head from the URL, with defaults for those that the maps do not have. */
export function chosenIn(sites, params) {
  const name = sites[params.get("site")] ? params.get("site") : Object.keys(sites)[0];
  const at = (key, list) => Math.max(list.indexOf(Number(params.get(key) ?? list[0])), 0);
  return [name, at("layer", sites[name].layers), at("head", sites[name].heads)];
}
