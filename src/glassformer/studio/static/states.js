// Placeholders for content that is loading, being computed, empty, or failed.

import { button, make } from "./dom.js";

/** Return animated lines that take the place of content while it loads. */
export function skeleton(lines = 3, about = "Loading") {
  return make("div.skeleton", { role: "status", "aria-label": about },
    Array.from({ length: lines }, (_, line) => make(`span.line${line === 0 ? ".short" : ""}`)));
}

/** Return a line that shows work in progress and its seconds; `stop` adds a button that ends the work. */
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

/** Return a box that shows an error with path, value and hint; `again` adds a button that retries. */
export function failure(error, again = null) {
  const facts = [["at", error.path], ["value", error.value], ["allowed", listed(error.allowed)]]
    .filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("div.failure", { role: "alert" },
    make("p.failure-message", {}, error.message),
    facts.length ? make("dl", {}, facts.map(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))])) : null,
    error.hint ? make("p", {}, make("span.muted", {}, "try: "), error.hint) : null,
    again && button("Try again", again));
}

/** Return a line with a reason not to trust the output for an input, or null if there is none. */
export const inputWarning = (text) => (text ? make("p.input-warning", { role: "status" }, `Warning: ${text}`) : null);

const listed = (allowed) => (Array.isArray(allowed) ? allowed.join(", ") : allowed);

/**
 * Do `act` while the last result in `body` stays visible, and return true if it succeeded. If it fails, the error is
 * shown above the result; `about` says what the result is for.
 */
export async function attempt(body, act, about, signal) {
  const notice = body.previousElementSibling?.matches(".attempt") ? body.previousElementSibling : make("div.attempt");
  body.before(notice);
  if (notice.dataset.busy) return false;
  notice.dataset.busy = "1";
  notice.replaceChildren(working("Running the model…"));
  body.setAttribute("aria-busy", "true");
  try {
    await act();
    notice.remove();
    return true;
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return false;
    notice.replaceChildren(failure(error), about && body.querySelector(".panel") ? make("p.note", {}, `Below: the last result, for ${about}.`) : "");
    return false;
  } finally {
    delete notice.dataset.busy;
    body.removeAttribute("aria-busy");
  }
}

/** Fill `root` with the result of `act`. Show `sign` until then, and an error if `act` fails. */
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
