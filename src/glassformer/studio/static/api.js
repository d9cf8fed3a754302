// Asking the studio's server: the token, errors that can be read, patience when it is busy.

const MOST_ATTEMPTS = 6;

/** What the server refused, in its own words. */
export class Refused extends Error {
  constructor(status, { problem, place = null, value = null, allowed = null, remedy = null }, errors = []) {
    super(problem);
    Object.assign(this, { name: "Refused", status, problem, place, value, allowed, remedy, errors });
  }
}

/** The server does not answer at all. */
export class Unreachable extends Error {
  constructor() {
    super("The studio does not answer.");
    this.name = "Unreachable";
    this.remedy = "its terminal: is it still running there? The page goes on by itself when it is back.";
  }
}

const wait = (milliseconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, milliseconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});

export async function ask(path, { body, method = body ? "POST" : "GET", signal, as = "json" } = {}) {
  for (let attempt = 1; ; attempt++) {
    const reply = await send(path, { body, method, signal });
    window.dispatchEvent(new CustomEvent("glassformer:answered"));
    if (reply.status === 204) return null;
    if (reply.ok) return as === "response" ? reply : reply[as]();
    const busy = reply.status === 429 || reply.status === 503;
    if (busy && attempt < MOST_ATTEMPTS) {
      await wait(1000 * Math.min(Number(reply.headers.get("Retry-After")) || 1, 10), signal);
      continue;
    }
    throw await refusal(reply);
  }
}

async function send(path, { body, method, signal }) {
  const headers = { Authorization: `Bearer ${localStorage.getItem("glassformer.token") ?? ""}` };
  if (body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(`/api/${path}`, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    window.dispatchEvent(new CustomEvent("glassformer:unreachable"));
    throw new Unreachable();
  }
}

async function refusal(reply) {
  let told = {};
  try {
    told = await reply.json();
  } catch {
    // Not ours: then its status is all there is.
  }
  if (reply.status === 401) window.dispatchEvent(new CustomEvent("glassformer:unknown"));
  return new Refused(reply.status, told.error ?? { problem: `The studio answered ${reply.status}.` }, told.errors ?? []);
}

/** A signal for work that can be ended before its view is left, and what ends it. */
export function stoppable(signal) {
  const own = new AbortController();
  return { signal: AbortSignal.any([signal, own.signal]), stop: () => own.abort() };
}

export const path = (...parts) => parts.map(encodeURIComponent).join("/");

/** Call `act` again and again, `seconds` apart, until the view is left; the page that nobody sees asks less often. */
export async function poll(act, seconds, signal) {
  while (!signal.aborted) {
    try {
      await act();
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Unreachable)) throw error;
    }
    await wait(1000 * (document.hidden ? 10 * seconds : seconds), signal).catch(() => {});
  }
}
