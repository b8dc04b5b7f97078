// Rates from counters: each sample is kept with its time and compared with an earlier one.

const WINDOW_MS = 5_000;
const KEYS_MAX = 20_000;

/** Keeps the samples of the last seconds. */
export class Rates {
  #seen = new Map();

  /** Add a sample and return the rate per second; null if it is not known yet. */
  note(key, value, now = performance.now()) {
    if (value === null || value === undefined) return null;
    let points = this.#seen.get(key);
    // A counter that decreased was reset with its node.
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

/** Rates of topics, shared by all views, so that they are there when the view changes. */
export const topicRates = new Rates();
