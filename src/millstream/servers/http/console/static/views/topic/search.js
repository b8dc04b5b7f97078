// Search in a topic by key, text, field and time. The node searches; the page asks until there is
// enough to show.

import { timeIn } from "../../acting/forms.js";
import { get, part, Unreachable } from "../../api.js";
import { decodersOf } from "../../decoding/decoders.js";
import { h, setText } from "../../dom.js";
import { exact, many, visible } from "../../format.js";
import { parseExactly } from "../../json.js";
import { RecordTable } from "../../record_table.js";
import { ShownRecord } from "../../records.js";
import { link } from "../../routes.js";

const PAGE = 100;

const FIELDS = [
  ["key", "Key", "text", "exactly"],
  ["text", "Text", "text", "anywhere"],
  ["field", "Field", "text", "customer.country"],
  ["value", "Value of the field", "text", "DE"],
  ["from", "From", "datetime-local", ""],
  ["to", "To", "datetime-local", ""],
  ["partition", "Partition", "number", "all"],
];

export function showSearch(inside, topic, query, signal) {
  const inputs = new Map();
  for (const [name, label, type, hint] of FIELDS) {
    const isFirst = name === "key";
    const input = h("input", { name, type, placeholder: hint, autocomplete: "off", spellcheck: "false", "data-search": isFirst, step: type === "datetime-local" ? "1" : null, min: type === "number" ? "0" : null });
    input.value = query.get(name) ?? "";
    inputs.set(name, [label, input]);
  }
  const start = h("button.primary", { type: "submit" }, "Search");
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const form = h(
    "form.search-form",
    null,
    [...inputs.values()].map(([label, input]) => h("label.form-row", null, h("span", null, label), input)),
    h("div.search-buttons", null, start, stop),
  );
  const progress = h("p.hint", { role: "status" });
  const error = h("p.form-error", { role: "alert", hidden: true });
  const table = new RecordTable({ label: "Found records", empty: "No record was found so far." });
  table.element.hidden = true;
  const more = h("button.tail-more", { type: "button", hidden: true }, "Find more");
  inside.append(form, error, progress, table.element, more);

  let running = null;
  let next = null;
  let scanned = 0;

  const values = () => Object.fromEntries([...inputs].map(([name, [, input]]) => [name, input.value.trim()]));

  function conditions() {
    const { from, to, ...rest } = values();
    return { ...rest, from: timeIn(from, "From"), to: timeIn(to, "To"), limit: PAGE };
  }

  /** Ask until a page is found, everything was searched, or somebody stops it. */
  async function run() {
    running?.abort();
    running = new AbortController();
    const signals = AbortSignal.any([running.signal, signal]);
    const wanted = table.count + PAGE;
    stop.hidden = false;
    more.hidden = true;
    error.hidden = true;
    table.element.hidden = false;
    let remaining = 0;
    try {
      const asked = conditions();
      const decoder = (await decodersOf([topic], signals)).get(topic);
      do {
        const found = await get(`/v1/topics/${part(topic)}/search`, { ...asked, after: next }, signals, parseExactly);
        table.add(found.records.map((one) => new ShownRecord(topic, one.partition, one, decoder)), asked.text);
        ({ next, remaining } = found);
        scanned += found.scanned;
        setText(progress, words(remaining));
      } while (next !== null && table.count < wanted);
    } catch (reason) {
      if (signal.aborted) return;
      if (!signals.aborted) {
        error.textContent = reason instanceof Unreachable ? "The node did not respond." : visible(reason.message);
        error.hidden = false;
      } else setText(progress, `Stopped. ${words(remaining)}`);
    }
    stop.hidden = true;
    more.hidden = next === null;
  }

  function words(remaining) {
    const found = `${many(table.count, "record")} found among ${exact(scanned)}`;
    if (next === null) return `${found}; everything was searched.`;
    const [partition, offset] = next.split(":");
    return `${found}; searched up to partition ${partition}, offset ${exact(Number(offset))}, at most ${exact(remaining)} left.`;
  }

  function begin() {
    next = null;
    scanned = 0;
    table.clear();
    run();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    history.replaceState(null, "", link(["topics", topic, "search"], values()));
    begin();
  });
  stop.addEventListener("click", () => running?.abort());
  more.addEventListener("click", () => run());
  if (Object.values(values()).some(Boolean)) begin();
}
