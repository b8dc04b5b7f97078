// Tail: live records of one or more topics.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { head, nothing } from "../parts.js";
import { link } from "../routes.js";
import { Tail } from "../tail.js";

const TOPICS_MAX = 20;
const SUGGESTED_MAX = 1_000;

/** Return the start position in an address. */
export function readFrom(query) {
  const from = query.get("from") ?? "recent";
  const partition = /^\d+$/.test(query.get("partition") ?? "") ? Number(query.get("partition")) : null;
  if (/^\d+$/.test(from)) return { from: Number(from), partition: partition ?? 0 };
  return { from: ["now", "earliest"].includes(from) ? from : "recent", partition };
}

/** Controls of the start position; `go` gets the new query. */
export function fromTools({ from, partition }, go) {
  const isOffset = typeof from === "number";
  const choice = h(
    "select",
    { "aria-label": "Start position" },
    [
      ["recent", "Last 100, then live"],
      ["now", "From now on"],
      ["earliest", "From the first record"],
      ["offset", "From an offset…"],
    ].map(([value, text]) => h("option", { value }, text)),
  );
  choice.value = isOffset ? "offset" : from;
  const number = (label, value) => h("input.short", { type: "number", min: "0", placeholder: label, "aria-label": label, value });
  const place = number("Partition", partition ?? 0);
  const offset = number("Offset", isOffset ? from : "");
  const start = h("button", { type: "submit" }, "Go");
  const fields = h("span.fields", { hidden: !isOffset }, place, offset, start);
  const form = h("form.inline", null, choice, fields);
  choice.addEventListener("change", () => {
    fields.hidden = choice.value !== "offset";
    if (choice.value === "offset") offset.focus();
    else go({ from: choice.value, partition: null });
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (offset.value) go({ from: offset.value, partition: place.value || "0" });
  });
  return form;
}

export function showTail(place, { query, signal }) {
  const topics = [...new Set(query.getAll("topic"))].slice(0, TOPICS_MAX);
  const beginning = readFrom(query);
  let filter = query.get("q") ?? "";

  function target(changes) {
    const now = { topic: topics, from: query.get("from"), partition: query.get("partition"), q: filter };
    return link("tail", { ...now, ...changes });
  }

  const go = (changes) => void (location.hash = target(changes));
  const list = h("datalist", { id: "topic-names" });
  const add = h("input", {
    list: "topic-names",
    placeholder: topics.length ? "Add a topic" : "Topic",
    "aria-label": "Topic to watch",
    autocomplete: "off",
    spellcheck: "false",
    "data-search": !topics.length,
  });
  const form = h("form.inline", null, add, list, h("button", { type: "submit" }, topics.length ? "Add" : "Watch"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = add.value.trim();
    if (name && !topics.includes(name)) go({ topic: [...topics, name] });
  });
  suggest(list, signal);
  const chips = topics.map((name) =>
    h(
      "span.chip",
      null,
      h("a", { href: link(["topics", name]) }, name),
      h("button", { type: "button", "aria-label": `Stop watching ${name}`, onclick: () => go({ topic: topics.filter((one) => one !== name) }) }, "×"),
    ),
  );
  const tools = [form];
  if (topics.length) tools.push(fromTools(beginning, go));
  fill(place, head("Tail", { badges: chips, tools }));
  if (!topics.length) {
    place.append(nothing("Which topic?", "Enter a topic above to see its records live; add others to see them together."));
    showChoices(place, signal);
    return;
  }
  const tail = new Tail({
    topics,
    ...beginning,
    filter,
    signal,
    onFilter: (text) => {
      filter = text;
      history.replaceState(null, "", target({}));
    },
  });
  place.append(tail.element);
}

async function suggest(list, signal) {
  try {
    const { topics } = await get("/v1/topics", { limit: SUGGESTED_MAX }, signal);
    fill(list, topics.map(({ name }) => h("option", { value: name })));
  } catch {
    // Suggestions are optional.
  }
}

async function showChoices(place, signal) {
  try {
    const { topics } = await get("/v1/topics", { limit: 50 }, signal);
    const entries = topics.map(({ name }) =>
      h("li", { "data-row": true }, h("a.chip", { href: link("tail", { topic: name }), "data-row-focus": true }, name)),
    );
    place.append(h("ul.choices", { "aria-label": "Topics" }, entries));
  } catch {
    // The field above works without them.
  }
}
