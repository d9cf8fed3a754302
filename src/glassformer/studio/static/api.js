// Requests to the studio's server: token, readable errors, retries while it is busy.

const MAX_ATTEMPTS = 6;

/** Error reply of the server. */
export class Refused extends Error {
  constructor(status, { message, path = null, value = null, allowed = null, hint = null }, errors = []) {
    super(message);
    Object.assign(this, { name: "Refused", status, path, value, allowed, hint, errors });
  }
}

/** The server cannot be reached. */
export class Unreachable extends Error {
  constructor() {
    super("The studio does not respond.");
    this.name = "Unreachable";
    this.hint = "to check that it is still running in its terminal. The page continues by itself when it is back.";
  }
}

const wait = (milliseconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, milliseconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});

export async function ask(path, { body, method = body ? "POST" : "GET", signal, as = "json" } = {}) {
  for (let attempt = 1; ; attempt++) {
    const reply = await send(path, { body, method, signal });
    window.dispatchEvent(new CustomEvent("glassformer:replied"));
    if (reply.status === 204) return null;
    if (reply.ok) return as === "response" ? reply : reply[as]();
    const busy = reply.status === 429 || reply.status === 503;
    if (busy && attempt < MAX_ATTEMPTS) {
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
  let document = {};
  try {
    document = await reply.json();
  } catch {
    // The reply is not ours; only its status is known.
  }
  if (reply.status === 401) window.dispatchEvent(new CustomEvent("glassformer:unauthorised"));
  return new Refused(reply.status, document.error ?? { message: `The studio replied with status ${reply.status}.` }, document.errors ?? []);
}

/** Return a signal that ends with the view or earlier, by `stop`. */
export function stoppable(signal) {
  const own = new AbortController();
  return { signal: AbortSignal.any([signal, own.signal]), stop: () => own.abort() };
}

export const path = (...parts) => parts.map(encodeURIComponent).join("/");

/** Call `act` every `seconds` until the view is left; less often while the page is hidden. */
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
