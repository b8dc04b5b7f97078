// Watches topics with one connection that reconnects where it broke off, and pauses when the page is
// full.

import { address, get, node, part, refusalOf, Refused } from "./api.js";
import { EventStream } from "./event_stream.js";
import { parseExactly } from "./json.js";

const RETRY_MS = 1_000;
const RECENT = 100;
const CURSOR_MAX = 8_000;

/** States of a watch: text and tone. */
export const STATES = {
  connecting: ["connecting", "plain"],
  live: ["live", "good"],
  behind: ["catching up", "warn"],
  held: ["paused: the page is full", "warn"],
  lost: ["connection lost, reconnecting", "bad"],
  ended: ["ended", "plain"],
  failed: ["cannot be watched", "bad"],
};

/** A watch over topics. Calls `on.records`, `on.note` and `on.state`. */
export class Watch {
  #source = null;
  #cursor = null;
  #timer = 0;
  #ends = new Map();
  #isCutOff = false;

  constructor({ topics, from, partition, signal, on }) {
    this.topics = topics;
    this.from = from;
    this.partition = partition;
    this.on = on;
    this.state = null;
    this.isClosed = false;
    signal.addEventListener("abort", () => this.close());
  }

  /** Number of records between the position and the ends of the partitions. */
  get behind() {
    let sum = 0;
    for (const { next, head } of this.#ends.values()) sum += head - next;
    return sum;
  }

  /** Start, or resume after `hold`. */
  async open() {
    this.#set("connecting");
    try {
      const from = this.#cursor ?? (await this.#beginning());
      if (!this.isClosed) this.#connect(from);
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Close the connection, and remember the position. */
  hold() {
    this.#disconnect();
    this.#set("held");
  }

  close() {
    this.isClosed = true;
    this.#disconnect();
  }

  #disconnect() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #set(state, detail = "") {
    if (this.isClosed) return;
    if (state === this.state && !detail) return;
    this.state = state;
    this.on.state(state, detail);
  }

  /** Return the start: a word, or a cursor. */
  async #beginning() {
    if (this.from === "now") return "latest";
    if (this.from === "earliest") return "earliest";
    const places = [];
    for (const name of this.topics) {
      const topic = await get(`/v1/topics/${part(name)}`);
      for (const one of topic.partitions) places.push([name, one, this.#offset(one)]);
    }
    const cursor = places.map(([name, one, offset]) => `${name}:${one.partition}:${offset}`).join(",");
    return cursor.length > CURSOR_MAX ? "latest" : cursor;
  }

  #offset(one) {
    if (this.from === "recent") return Math.max(one.first_live_offset, one.head - RECENT);
    return one.partition === this.partition ? Math.min(this.from, one.head) : one.head;
  }

  #connect(from) {
    const hearers = new Map();
    const hear = (kind, work) => hearers.set(kind, work);
    hear("records", (data) => this.#tell(data));
    hear("lagged", (data) => this.on.note(`This page was too slow; ${place(data)} is read again from the log.`));
    hear("gap", (data) =>
      this.on.note(
        data.reason === "recreated"
          ? `${data.topic}/${data.partition} was deleted and created again; it is read from its start.`
          : `${place(data)} was deleted: ${data.reason}.`,
      ),
    );
    hear("end", (data) => {
      if (data.reason === "stopping") return; // The stream connects again.
      this.on.note(`${data.topic} ended: ${data.reason}.`);
      if (this.topics.length > 1) return;
      this.#disconnect();
      this.#set("ended");
    });
    this.#source = new EventStream(address("/v1/events", { topic: this.topics, from }), {
      open: () => {
        node.note(true);
        if (this.#isCutOff) this.on.note("The connection was lost and has resumed where it was.");
        this.#isCutOff = false;
        this.#set(this.from === "now" || this.behind === 0 ? "live" : "behind");
      },
      event: (kind, data, id) => {
        if (id) this.#cursor = id;
        hearers.get(kind)?.(parseExactly(data));
      },
      lost: () => {
        this.#isCutOff = true;
        this.#set("lost");
      },
      refused: async (response, token) => this.#fail(await refusalOf(response, token)),
    });
  }

  #tell(data) {
    this.#ends.set(`${data.topic} ${data.partition}`, data);
    if (this.partition === null || data.partition === this.partition) this.on.records(data);
    if (this.#source) this.#set(this.behind > 0 ? "behind" : "live");
  }

  #fail(error) {
    if (this.isClosed) return;
    const isFinal = error instanceof Refused && error.status < 500;
    if (isFinal) {
      this.#set("failed", error.message);
      return;
    }
    this.#set("lost");
    this.#timer = setTimeout(() => this.open(), RETRY_MS);
  }
}

function place({ topic, partition, from, to }) {
  return `${topic}/${partition}, ${from} to ${to},`;
}
