// Rates out of counters that only grow: each is noted with its time, and compared with what it was.

const WINDOW_MS = 5_000;
const KEYS_MAX = 20_000;

/** Remembers what counters were some seconds ago. */
export class Rates {
  #seen = new Map();

  /** Note what a counter is, and return how much it grows in a second; null where nobody knows. */
  note(key, value, now = performance.now()) {
    if (value === null || value === undefined) return null;
    let points = this.#seen.get(key);
    // A counter that is smaller than it was began anew, with its node.
    if (!points || value < points.at(-1).value) {
      points = [];
      if (this.#seen.size >= KEYS_MAX) this.#seen.clear();
      this.#seen.set(key, points);
    }
    if (points.at(-1)?.now !== now) points.push({ now, value });
    while (points.length > 2 && now - points[1].now >= WINDOW_MS) points.shift();
    const since = now - points[0].now;
    return since > 0 ? ((value - points[0].value) / since) * 1000 : null;
  }
}

/** Those of topics, for all views: who goes from one to another sees them at once. */
export const topicRates = new Rates();
