// What stands where something is not there yet, is not at all, or went wrong.

import { button, make } from "./dom.js";

/** Lines that move a little, in the shape of what will come. */
export function skeleton(lines = 3, about = "Loading") {
  return make("div.skeleton", { role: "status", "aria-label": about },
    Array.from({ length: lines }, (_, line) => make(`span.line${line === 0 ? ".short" : ""}`)));
}

/** Work that takes seconds, with the seconds it has taken; `stop` offers to end it. */
export function working(text, stop = null) {
  const seconds = make("span.muted", {}, "");
  const made = make("div.working", { role: "status" }, make("span.spinner", { "aria-hidden": "true" }), make("span", {}, text), seconds,
    stop && button("Stop", stop, { className: "quiet" }));
  const start = performance.now();
  const timer = setInterval(() => {
    if (!made.isConnected && performance.now() - start > 1000) clearInterval(timer);
    const passed = Math.floor((performance.now() - start) / 1000);
    if (passed) seconds.textContent = `${passed} s`;
  }, 500);
  return made;
}

export function empty(title, text, ...actions) {
  return make("div.empty", {}, make("h2", {}, title), make("p.muted", {}, text), actions.length ? make("div.actions", {}, ...actions) : null);
}

/** An error with its place, value and remedy; `again` offers another try. */
export function failure(error, again = null) {
  const facts = [["at", error.place], ["value", error.value], ["allowed", join_names(error.allowed)]]
    .filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("div.failure", { role: "alert" },
    make("p.failure-problem", {}, error.problem ?? error.message),
    facts.length ? make("dl", {}, facts.map(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))])) : null,
    error.remedy ? make("p", {}, make("span.muted", {}, "try "), error.remedy) : null,
    again && button("Try again", again));
}

const listed = (allowed) => (Array.isArray(allowed) ? allowed.join(", ") : allowed);

/** Fill `root` with what `act` promises; until then a sign of work, and an error if it fails. */
export async function fill(root, sign, act, signal) {
  root.replaceChildren(sign);
  root.setAttribute("aria-busy", "true");
  try {
    const made = await act();
    if (!signal?.aborted) root.replaceChildren(...[made].flat().filter(Boolean));
  } catch (error) {
    if (signal?.aborted || error.name === "AbortError") return;
    root.replaceChildren(failure(error, error.name === "Refused" && error.status < 500 ? null : () => fill(root, sign, act, signal)));
  } finally {
    root.removeAttribute("aria-busy");
  }
}
