// Event logs of runs, read again while they grow.

import { ask, path } from "./api.js";

const NOT_CURVES = new Set(["event", "step", "epoch", "seconds", "elapsed", "order", "time"]);

/** Events of one run that have been read so far. */
export class EventLog {
  constructor(name) {
    this.name = name;
    this.clear();
  }

  clear() {
    Object.assign(this, { next: 0, mark: null, training: new Map(), validation: new Map(), heads: [], status: null, step: 0, total: null });
  }

  /** Read new events, and return true if there were any. A log that was truncated is read again from its start. */
  async follow(signal) {
    for (let news = false; ; ) {
      const mark = this.mark ? `&mark=${this.mark}` : "";
      const reply = await ask(`runs/${path(this.name)}/events?after=${this.next}${mark}`, { signal });
      news ||= reply.status !== this.status || reply.step !== this.step || reply.events.length > 0 || reply.restart;
      if (reply.restart) this.clear();
      Object.assign(this, { status: reply.status, step: reply.step, total: reply.total_steps, next: reply.next, mark: reply.mark });
      for (const event of reply.events) this.add(event);
      if (!reply.more) return news;
    }
  }

  add(event) {
    if (event.event === "head_probe") this.heads.push(event);
    const into = { step: this.training, validation: this.validation }[event.event];
    if (!into) return;
    for (const [name, value] of Object.entries(event)) {
      if (NOT_CURVES.has(name) || typeof value !== "number") continue;
      if (!into.has(name)) into.set(name, []);
      into.get(name).push([event.step, value]);
    }
  }

  get isLive() {
    return ["running", "new", "stalled"].includes(this.status);
  }

  curve(name) {
    return { training: this.training.get(name) ?? [], validation: this.validation.get(name) ?? [] };
  }

  metrics() {
    return [...new Set([...this.training.keys(), ...this.validation.keys()])];
  }
}
