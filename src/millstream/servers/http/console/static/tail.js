// Live tail of topics: the newest records last, as many as the page can hold.

import { decodersOf } from "./decoding/decoders.js";
import { fill, h, setText } from "./dom.js";
import { ago, clock, exact, many, moment, visible } from "./format.js";
import { bind } from "./keys.js";
import { details, marked, preview, ShownRecord } from "./records.js";
import { STATES, Watch } from "./watching.js";

const ROWS_MAX = 1_000;
const CHARACTERS_MAX = 16 * 1024 * 1024;
const SHOW_MS = 100;
const NEAR_END = 40;

/** A list bounded by number and size: the oldest items are dropped. */
class Ring {
  items = [];
  length = 0;

  push(item) {
    this.items.push(item);
    this.length += item.length ?? 0;
    while (this.items.length > 1 && (this.items.length > ROWS_MAX || this.length > CHARACTERS_MAX))
      this.length -= this.items.shift().length ?? 0;
  }
}

/** The live tail of topics, with its toolbar. */
export class Tail {
  #all = new Ring();
  #matched = new Ring();
  #waiting = [];
  #unread = [];
  #rows = new Map();
  #open = new Set();
  #timer = 0;
  #sinceOpened = 0;
  #seen = 0;
  #passed = 0;
  #number = 0;

  constructor({ topics, from, partition = null, signal, filter = "", onFilter = () => {} }) {
    this.topics = topics;
    this.filter = filter;
    this.isPaused = false;
    this.isFollowing = from === "now" || from === "recent";
    this.isBounded = !this.isFollowing; // Who reads from the start wants it page by page.
    this.#make(onFilter);
    this.watch = new Watch({
      topics,
      from,
      partition,
      signal,
      on: {
        records: (data) => this.#take(data),
        note: (text) => this.#add({ note: text }),
        state: (state, detail) => this.#showState(state, detail),
      },
    });
    bind("p", () => this.pause(), signal);
    bind(" ", (event) => !event.target.closest("button, a, [data-row]") && this.pause(), signal);
    bind("c", () => this.clear(), signal);
    signal.addEventListener("abort", () => clearTimeout(this.#timer));
    this.#start(signal);
  }

  /** Values are shown by the formats of their topics, so these come first. */
  async #start(signal) {
    this.decoders = await decodersOf(this.topics, signal);
    if (!signal.aborted) this.watch.open();
  }

  #make(onFilter) {
    this.field = h("input.search", {
      type: "search",
      placeholder: "Filter by key, value, header  /",
      "aria-label": "Filter by key, value or header",
      "data-search": true,
      autocomplete: "off",
      spellcheck: "false",
    });
    this.field.value = this.filter;
    this.field.addEventListener("input", () => {
      this.#setFilter(this.field.value);
      onFilter(this.field.value);
    });
    this.pauseButton = h("button", { type: "button", title: "p", onclick: () => this.pause() }, "Pause");
    const clear = h("button", { type: "button", title: "c", onclick: () => this.clear() }, "Clear");
    this.state = h("span.tail-state", { role: "status" });
    this.count = h("span.tail-count");
    this.body = h("tbody", { role: "rowgroup" });
    const hasTopic = this.topics.length > 1;
    const heads = [
      h("th", { scope: "col", role: "columnheader", class: "time" }, "Time"),
      h("th", { scope: "col", role: "columnheader", class: "place" }, hasTopic ? "Topic / partition" : "Partition"),
      h("th", { scope: "col", role: "columnheader", class: "number" }, "Offset"),
      h("th", { scope: "col", role: "columnheader", class: "key" }, "Key"),
      h("th", { scope: "col", role: "columnheader", class: "value" }, "Value"),
    ];
    const table = h(
      "table.tail",
      { role: "table", "aria-label": "Records", class: hasTopic ? "tail has-topics" : "tail" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
      this.body,
    );
    this.wait = h("p.tail-wait");
    this.more = h("button.tail-more", { type: "button", hidden: true });
    this.end = h("button.tail-end", { type: "button", hidden: true, onclick: () => this.#follow() }, "Newest ↓");
    this.scroller = h(
      "div.tail-scroller",
      { tabindex: "0", role: "region", "aria-label": "Records, newest last" },
      table,
      this.wait,
      this.more,
    );
    this.more.addEventListener("click", () => this.#goOn());
    this.scroller.addEventListener("scroll", () => this.#noteScroll());
    this.element = h(
      "div.tail-box",
      null,
      h("div.tools", null, this.field, this.pauseButton, clear, this.state, this.count),
      h("div.tail-frame", null, this.scroller, this.end),
    );
  }

  /** Pause or resume. Records that arrive while paused are kept within the limits. */
  pause() {
    this.isPaused = !this.isPaused;
    setText(this.pauseButton, this.isPaused ? "Resume" : "Pause");
    this.pauseButton.classList.toggle("is-on", this.isPaused);
    if (!this.isPaused) this.#show();
    this.#showCount();
  }

  clear() {
    this.#all = new Ring();
    this.#matched = new Ring();
    this.#waiting = [];
    this.#open.clear();
    this.#seen = 0;
    this.#passed = 0;
    this.#sinceOpened = 0;
    this.#showAll();
    if (this.watch.state === "held") this.#goOn();
  }

  // Input.

  #take(data) {
    if (this.isBounded) {
      for (const record of data.records) this.#unread.push({ ...data, record });
      this.#turn();
      return;
    }
    // Of more records than fit, only the last are visible; but a filter looks through all.
    const skipped = this.filter ? 0 : Math.max(0, data.records.length - ROWS_MAX);
    this.#passed += skipped;
    this.#seen += skipped;
    for (const one of data.records.slice(skipped))
      this.#add(new ShownRecord(data.topic, data.partition, one, this.decoders.get(data.topic)));
  }

  /** Show new records up to a page; then wait until the user continues. */
  #turn() {
    let taken = 0;
    while (taken < this.#unread.length && this.#sinceOpened < ROWS_MAX) {
      const { topic, partition, record } = this.#unread[taken];
      this.#add(new ShownRecord(topic, partition, record, this.decoders.get(topic)));
      taken += 1;
    }
    this.#unread.splice(0, taken);
    if (this.#left === 0) this.isBounded = false; // From here on, records come as they are made.
    else if (this.#sinceOpened >= ROWS_MAX) this.watch.hold();
  }

  get #left() {
    return this.#unread.length + this.watch.behind;
  }

  #add(item) {
    item.number = this.#number;
    this.#number += 1;
    if (item instanceof ShownRecord) this.#seen += 1;
    this.#waiting.push(item);
    if (this.#isShown(item)) this.#sinceOpened += 1;
    if (this.#waiting.length > 2 * ROWS_MAX) this.#keep();
    if (!this.#timer) this.#timer = setTimeout(() => this.#show(), SHOW_MS);
  }

  #isShown(item) {
    if (!(item instanceof ShownRecord)) return true;
    return !this.filter || item.searched.includes(this.filter.toLowerCase());
  }

  /** Drop excess records while the page is hidden; matches of the filter stay longest. */
  #keep() {
    const found = this.#waiting.filter((item) => this.#isShown(item)).slice(-ROWS_MAX);
    const rest = this.#waiting.slice(-ROWS_MAX);
    const kept = new Set([...found, ...rest]);
    this.#passed += this.#waiting.length - kept.size;
    this.#waiting = this.#waiting.filter((item) => kept.has(item));
  }

  #show() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (this.isPaused) {
      this.#showCount();
      return;
    }
    const added = [];
    for (const item of this.#waiting) {
      this.#all.push(item);
      if (!this.#isShown(item)) continue;
      this.#matched.push(item);
      added.push(item);
    }
    this.#waiting = [];
    const kept = this.#items();
    const first = kept[0]?.number ?? Infinity;
    for (const [number, row] of this.#rows) {
      if (number >= first) break;
      this.#removeRow(number, row);
    }
    const rows = added.filter((item) => item.number >= first).map((item) => this.#makeRow(item));
    this.body.append(...rows);
    if (this.isFollowing) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#showCount();
  }

  #items() {
    return (this.filter ? this.#matched : this.#all).items;
  }

  // Output.

  #setFilter(text) {
    this.filter = text.trim();
    this.#matched = new Ring();
    for (const item of this.#all.items) if (this.#isShown(item)) this.#matched.push(item);
    this.#sinceOpened = this.#items().length;
    this.#showAll();
    // There may be more matches later.
    if (this.filter && this.watch.state === "held" && this.#sinceOpened < ROWS_MAX) this.#goOn();
  }

  #showAll() {
    this.#rows.clear();
    fill(this.body, this.#items().map((item) => this.#makeRow(item)));
    if (this.isFollowing) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#showCount();
  }

  #makeRow(item) {
    const row = item instanceof ShownRecord ? this.#recordRow(item) : noteRow(item.note);
    this.#rows.set(item.number, row);
    return row;
  }

  #removeRow(number, row) {
    if (row.nextSibling?.matches?.(".detail-row")) row.nextSibling.remove();
    row.remove();
    this.#rows.delete(number);
    this.#open.delete(number);
  }

  #recordRow(record) {
    const cell = (kind, properties, ...content) => h(kind, { role: "cell", ...properties }, content);
    const isMany = this.topics.length > 1;
    const row = h(
      "tr.record",
      { role: "row", "data-row": true, tabindex: "-1", "aria-expanded": "false" },
      cell("td.time", { title: `${moment(record.timestamp)}, ${ago(record.timestamp)}` }, clock(record.timestamp)),
      cell("td.place", null, isMany ? `${record.topic}/${record.partition}` : String(record.partition)),
      cell("td.number", null, exact(record.offset)),
      cell("td.key", null, preview(record.key, this.filter)),
      cell("td.value", null, preview(record.value, this.filter), this.#foundHeaders(record)),
    );
    row.addEventListener("click", (event) => {
      if (!String(getSelection())) this.#toggle(record, row, event);
    });
    row.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.#toggle(record, row);
    });
    return row;
  }

  #foundHeaders(record) {
    if (!record.headers.length) return null;
    const wanted = this.filter.toLowerCase();
    const texts = record.headers.map(([name, value]) => visible(`${name}: ${value}`));
    const found = wanted ? texts.filter((text) => text.toLowerCase().includes(wanted)) : [];
    if (!found.length)
      return h("span.tag.quiet-tag", { title: texts.join("\n") }, many(texts.length, "header"));
    return found.map((text) => h("span.tag", null, marked(text, this.filter)));
  }

  #toggle(record, row) {
    const isOpen = !this.#open.has(record.number);
    row.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) {
      this.#open.add(record.number);
      const cell = h("td", { role: "cell", colspan: "5" }, details(record));
      row.after(h("tr.detail-row", { role: "row" }, cell));
    } else {
      this.#open.delete(record.number);
      if (row.nextSibling?.matches?.(".detail-row")) row.nextSibling.remove();
    }
  }

  #showState(state, detail) {
    const [word, tone] = STATES[state];
    fill(this.state, h(`span.dot.${tone}`), h("span", null, detail ? `${word}: ${visible(detail)}` : word));
    this.more.hidden = state !== "held";
    setText(this.more, `Continue: ${many(this.#left, "record")} to the end`);
    this.#showCount();
  }

  #goOn() {
    this.#sinceOpened = 0;
    this.#turn();
    if (this.#sinceOpened < ROWS_MAX) this.watch.open();
    else this.#showState("held", "");
  }

  #showCount() {
    const shown = this.#items().filter((item) => item instanceof ShownRecord).length;
    const words = [];
    if (this.filter) words.push(`${exact(shown)} of ${exact(this.#seen)} match`);
    else words.push(many(shown, "record"));
    if (!this.filter && this.#seen - this.#waiting.length > shown) words.push(`the last of ${exact(this.#seen)}`);
    if (this.isPaused) words.push(`${exact(this.#waiting.length + this.#passed)} new`);
    setText(this.count, words.join(", "));
    this.wait.hidden = shown > 0;
    const state = this.watch?.state;
    if (state === "failed" || state === "ended") setText(this.wait, "");
    else if (this.filter && this.#seen) setText(this.wait, "No record matches the filter.");
    else setText(this.wait, "Waiting for records.");
  }

  #noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.isFollowing = scrollHeight - scrollTop - clientHeight < NEAR_END;
    this.end.hidden = this.isFollowing || this.isBounded;
  }

  #follow() {
    this.isFollowing = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}

function noteRow(text) {
  return h("tr.note", { role: "row" }, h("td", { role: "cell", colspan: "5" }, visible(text)));
}
