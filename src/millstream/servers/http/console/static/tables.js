// Tables that are updated in place: rows keep their elements, so focus, selection and scroll
// position stay while numbers change.

import { h, fill, setText } from "./dom.js";
import { many } from "./format.js";

const ROWS_MAX = 500;

/** A table of rows.
 *
 * A column has `id`, `label`, and `show(row)`, which returns a text or an element; `value(row)` to
 * sort by, `title(row)` for the exact value, `isNumber`, `isFaint(row)` for unimportant values,
 * `hint` for its head. An element of `show` is created again only if `stamp(row)` differs.
 */
export class Table {
  #elements = new Map();
  #rows = [];

  constructor({ label, columns, key, link, sort = null, isDescending = false, empty = "" }) {
    this.columns = columns;
    this.key = key;
    this.link = link;
    this.sort = sort;
    this.isDescending = isDescending;
    this.empty = empty;
    this.head = h("tr");
    this.body = h("tbody");
    this.note = h("p.table-note");
    const table = h("table", { "aria-label": label }, h("thead", null, this.head), this.body);
    // A scrolling region must be reachable by keyboard.
    this.scroller = h("div.table", { role: "region", "aria-label": label, tabindex: "0" }, table);
    this.element = h("div.table-box", null, this.scroller, this.note);
    this.#showHead();
  }

  #showHead() {
    const cells = this.columns.map((column) => {
      const isSorted = this.sort === column.id;
      const order = this.isDescending ? "descending" : "ascending";
      const properties = {
        scope: "col",
        class: column.isNumber ? "number" : column.class,
        "aria-sort": isSorted ? order : null,
        title: column.hint,
      };
      if (!column.value) return h("th", properties, column.label);
      const arrow = h("span.arrow", { "aria-hidden": "true" });
      arrow.textContent = isSorted ? (this.isDescending ? "↓" : "↑") : "";
      const sort = () => this.sortBy(column);
      return h("th", properties, h("button", { type: "button", onclick: sort }, column.label, arrow));
    });
    fill(this.head, cells);
  }

  sortBy(column) {
    this.isDescending = this.sort === column.id ? !this.isDescending : Boolean(column.isNumber);
    this.sort = column.id;
    const focused = [...this.head.children].findIndex((cell) =>
      cell.contains(document.activeElement),
    );
    this.#showHead();
    this.head.children[focused]?.querySelector("button")?.focus();
    this.show(this.#rows);
  }

  #sorted(rows) {
    const column = this.columns.find((one) => one.id === this.sort);
    if (!column) return rows;
    const sign = this.isDescending ? -1 : 1;
    return [...rows].sort((a, b) => {
      const first = column.value(a);
      const second = column.value(b);
      if (first === second) return 0;
      if (first === null || first === undefined) return 1; // What nobody knows comes last.
      if (second === null || second === undefined) return -1;
      return first < second ? -sign : sign;
    });
  }

  /** Show exactly these rows. */
  show(rows) {
    this.#rows = rows;
    const shown = this.#sorted(rows).slice(0, ROWS_MAX);
    const kept = new Map();
    let before = null;
    for (const row of shown) {
      const key = this.key(row);
      const element = this.#elements.get(key) ?? this.#makeRow(row);
      this.#update(element, row);
      kept.set(key, element);
      const place = before ? before.nextSibling : this.body.firstChild;
      if (place !== element) this.body.insertBefore(element, place);
      before = element;
    }
    while (before ? before.nextSibling : this.body.firstChild)
      (before ? before.nextSibling : this.body.firstChild).remove();
    this.#elements = kept;
    if (!rows.length && this.empty) {
      const cell = h("td.empty", { colspan: this.columns.length }, this.empty);
      this.body.append(h("tr", null, cell));
    }
    const left = rows.length - shown.length;
    setText(this.note, left > 0 ? `${many(left, "row")} more: use the search.` : "");
    this.note.hidden = left <= 0;
  }

  /** Scroll to a row and focus it. */
  focusRow(key) {
    const element = this.#elements.get(key);
    element?.scrollIntoView({ block: "center" });
    element?.focus();
  }

  #makeRow(row) {
    const target = this.link?.(row);
    const properties = target ? { "data-row": true, class: "opens" } : { "data-row": true };
    const element = h("tr", properties);
    if (target) {
      element.addEventListener("click", (event) => {
        // Not while text is selected, on links, or for a new tab.
        if (event.target.closest("a, button") || String(getSelection())) return;
        element.querySelector("a[data-row-focus]")?.click();
      });
    } else element.tabIndex = -1;
    this.columns.forEach((column, index) => {
      const kind = index === 0 ? "th" : "td";
      const scope = index === 0 ? "row" : null;
      element.append(h(kind, { scope, class: column.isNumber ? "number" : column.class }));
    });
    return element;
  }

  #update(element, row) {
    this.columns.forEach((column, index) => {
      const cell = element.children[index];
      const title = column.title?.(row);
      if (title !== undefined && cell.title !== String(title)) cell.title = title;
      if (column.isFaint) cell.classList.toggle("faint", column.isFaint(row));
      if (column.stamp) {
        const stamp = String(column.stamp(row));
        if (cell.dataset.stamp === stamp) return;
        cell.dataset.stamp = stamp;
        fill(cell, column.show(row));
        return;
      }
      const text = column.show(row);
      if (index === 0 && this.link) {
        const target = this.link(row);
        if (!cell.firstChild) cell.append(h("a", { href: target, "data-row-focus": true }));
        if (cell.firstChild.getAttribute("href") !== target) cell.firstChild.href = target;
        setText(cell.firstChild, text);
      } else setText(cell, text);
    });
  }
}

/** A search field; `changed` is called with its text. */
export function searchField(label, changed, value = "") {
  const input = h("input.search", {
    type: "search",
    placeholder: `${label}  /`,
    "aria-label": label,
    "data-search": true,
    autocomplete: "off",
    spellcheck: "false",
    value,
  });
  input.value = value;
  input.addEventListener("input", () => changed(input.value));
  return input;
}

/** Return whether a text contains all words of a search. */
export function matches(text, search) {
  const found = text.toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => found.includes(word));
}
