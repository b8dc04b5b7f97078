// Parts that views share: heads, figures, badges, bars, and the states loading, empty and failed.

import { h, fill, setText } from "./dom.js";
import { Refused } from "./api.js";
import { link } from "./routes.js";
import { visible } from "./format.js";

/** The head of a view: breadcrumbs, title and actions. */
export function head(title, { path = [], badges = [], tools = [] } = {}) {
  const crumbs = path.map(([text, target]) => [
    h("a", { href: target }, text),
    h("span.crumb", { "aria-hidden": "true" }, "/"),
  ]);
  return h(
    "header.head",
    null,
    h("div.head-title", null, crumbs, h("h1", { tabindex: "-1", title: visible(title) }, visible(title)), badges),
    tools.length ? h("div.head-tools", null, tools) : null,
  );
}

/** Tabs of a view. */
export function tabs(label, entries, current) {
  return h(
    "nav.tabs",
    { "aria-label": label },
    entries.map(([name, text, target]) =>
      h("a", { href: target, "aria-current": name === current ? "page" : null }, text),
    ),
  );
}

/** A row of figures: each has a name, a value, and the exact value as its title. */
export class Figures {
  #values = new Map();

  constructor(names) {
    this.element = h("dl.figures");
    for (const [id, label, target] of names) {
      const value = h("dd", null, "–");
      this.#values.set(id, value);
      const name = target ? h("a", { href: target }, label) : label;
      this.element.append(h("div.figure", null, h("dt", null, name), value));
    }
  }

  set(id, text, title = "") {
    const value = this.#values.get(id);
    setText(value, text);
    if (value.title !== title) value.title = title;
  }
}

const TONES = {
  ready: "good",
  stable: "good",
  active: "good",
  sealed: "plain",
  cold: "plain",
  empty: "plain",
  dead: "bad",
  leased: "warn",
  delayed: "plain",
};

/** A badge: a word with a color for its meaning. */
export function badge(text, tone = TONES[String(text).toLowerCase()] ?? "plain") {
  return h(`span.badge.${tone}`, null, visible(text));
}

/** A bar that shows a value relative to the maximum. */
export function bar(share, tone = "accent") {
  const filled = h(`span.bar-fill.${tone}`);
  filled.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span.bar", { "aria-hidden": "true" }, filled);
}

/** A card: a part of a view with a title. */
export function card(title, ...children) {
  return h("section.card", null, title ? h("h2", null, title) : null, children);
}

/** A list of names and values. */
export function facts(rows) {
  return h(
    "dl.facts",
    null,
    rows.map(([name, value]) => [
      h("dt", null, name),
      h("dd", null, value instanceof Node ? value : visible(value ?? "–")),
    ]),
  );
}

export function loading() {
  return h("p.state.loading", { role: "status" }, "Loading…");
}

/** The empty state: what is missing, and how to create it. */
export function nothing(title, text, commands = "") {
  return h(
    "div.state",
    null,
    h("h2", null, title),
    h("p", null, text),
    commands ? h("pre.commands", null, commands) : null,
  );
}

/** The error state. */
export function failure(error, list) {
  const status = error instanceof Refused ? error.status : 0;
  const title = { 401: "You are not logged in", 403: "You may not see this", 404: "Not found" }[status];
  return h(
    "div.state",
    { role: "alert" },
    h("h2", null, title ?? "The node cannot show this"),
    h("p", null, visible(error.message ?? error)),
    list ? h("p", null, h("a", { href: link(list) }, `All ${list}`)) : null,
  );
}

/** Shows content, or instead of it an error or an empty state. */
export class Stage {
  constructor(content) {
    this.content = content;
    this.state = h("div.stage-state", null, loading());
    this.element = h("div.stage", null, this.state, content);
    content.hidden = true;
  }

  showContent() {
    if (this.content.hidden) {
      this.content.hidden = false;
      fill(this.state);
    }
  }

  showState(element) {
    this.content.hidden = true;
    fill(this.state, element);
  }
}

/** A button that loads the next page, and the number of loaded items. */
export class More {
  constructor(noun, work) {
    this.noun = noun;
    this.text = h("span");
    this.button = h("button", { type: "button" }, `More ${noun}`);
    this.button.addEventListener("click", async () => {
      this.button.disabled = true;
      try {
        await work();
      } finally {
        this.button.disabled = false;
      }
    });
    this.element = h("p.more", { hidden: true }, this.text, this.button);
  }

  show(count, hasMore) {
    this.element.hidden = !hasMore;
    setText(this.text, `Showing the first ${count} ${this.noun}. `);
  }
}
