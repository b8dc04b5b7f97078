// A table of records that can be expanded: those that a search found, or dead letters.

import { fill, h } from "./dom.js";
import { ago, clock, exact, moment } from "./format.js";
import { details, preview } from "./records.js";

const COLUMNS = [
  ["Time", "time"],
  ["Partition", "place"],
  ["Offset", "number"],
  ["Key", "key"],
  ["Value", "value"],
];

/** A table of `ShownRecord`s; `extra` returns more facts for the details of one. */
export class RecordTable {
  constructor({ label, empty, extra = () => [] }) {
    this.extra = extra;
    this.count = 0;
    this.body = h("tbody", { role: "rowgroup" });
    const heads = COLUMNS.map(([text, kind]) => h("th", { scope: "col", role: "columnheader", class: kind }, text));
    const head = h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads));
    const table = h("table.tail", { role: "table", "aria-label": label }, head, this.body);
    this.empty = h("p.tail-wait", null, empty);
    this.element = h("div.table", { role: "region", "aria-label": label, tabindex: "0" }, table, this.empty);
  }

  clear() {
    this.count = 0;
    fill(this.body);
    this.empty.hidden = false;
  }

  add(records, search = "") {
    this.body.append(...records.map((record) => this.#row(record, search)));
    this.count += records.length;
    this.empty.hidden = this.count > 0;
  }

  #row(record, search) {
    const cell = (kind, properties, ...content) => h(kind, { role: "cell", ...properties }, content);
    const row = h(
      "tr.record",
      { role: "row", "data-row": true, tabindex: "-1", "aria-expanded": "false" },
      cell("td.time", { title: `${moment(record.timestamp)}, ${ago(record.timestamp)}` }, clock(record.timestamp)),
      cell("td.place", null, String(record.partition)),
      cell("td.number", null, exact(record.offset)),
      cell("td.key", null, preview(record.key, search)),
      cell("td.value", null, preview(record.value, search)),
    );
    const toggle = () => {
      const isOpen = row.getAttribute("aria-expanded") !== "true";
      row.setAttribute("aria-expanded", String(isOpen));
      if (!isOpen) row.nextSibling.remove();
      else row.after(h("tr.detail-row", { role: "row" }, h("td", { role: "cell", colspan: "5" }, details(record, this.extra(record)))));
    };
    row.addEventListener("click", () => String(getSelection()) || toggle());
    row.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle();
    });
    return row;
  }
}
