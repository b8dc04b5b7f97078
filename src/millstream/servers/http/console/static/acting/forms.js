// Dialogs with a form: they stay open with the error if the node refuses, and close when it is done.

import { fill, h } from "../dom.js";
import { visible } from "../format.js";
import { notice } from "./access.js";

/** Open a form.
 *
 * A field has `name`, `label`, and `kind`: text, number, time, select (with `options`), or area. `work`
 * gets the values by name, and returns the message to show when it is done. `preview` returns an
 * element that is shown before: then the first press of the button shows it, and the second works.
 * With `mustType`, that text has to be typed before the button works.
 */
export function openForm({ title, text, fields = [], button, work, preview, mustType, isDanger = false }) {
  const dialog = document.getElementById("form");
  const inputs = new Map(fields.map((field) => [field.name, input(field)]));
  const error = h("p.form-error", { role: "alert", hidden: true });
  const shown = h("div.form-preview");
  const submit = h(isDanger ? "button.danger" : "button.primary", { type: "submit" }, preview ? "Preview" : button);
  const close = () => dialog.close();
  const form = h(
    "form.form",
    { novalidate: true },
    text ? h("p.hint", null, visible(text)) : null,
    fields.map((field) => row(field, inputs.get(field.name))),
    shown,
    error,
    h("footer", null, h("button", { type: "button", onclick: close }, "Cancel"), submit),
  );
  let isPreviewed = !preview;

  if (mustType) {
    const typed = h("input", { "aria-label": `Type ${mustType} to confirm`, autocomplete: "off", spellcheck: "false" });
    const label = h("label.form-row", null, h("span", null, "Type ", h("code", null, visible(mustType)), " to confirm"), typed);
    form.insertBefore(label, shown);
    submit.disabled = true;
    typed.addEventListener("input", () => (submit.disabled = typed.value !== mustType));
  }

  const values = () => Object.fromEntries([...inputs].map(([name, one]) => [name, one.value]));

  function fail(message) {
    error.textContent = visible(message);
    error.hidden = false;
  }

  /** What was previewed is not what would be done any more. */
  function forget() {
    if (!preview || !isPreviewed) return;
    isPreviewed = false;
    submit.textContent = "Preview";
    fill(shown);
  }

  form.addEventListener("input", forget);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (submit.disabled) return;
    submit.disabled = true;
    error.hidden = true;
    try {
      if (isPreviewed) {
        const message = await work(values());
        close();
        notice(message);
        return;
      }
      fill(shown, await preview(values()));
      isPreviewed = true;
      submit.textContent = button;
    } catch (reason) {
      fail(reason.message ?? String(reason));
    }
    submit.disabled = false;
  });
  fill(
    dialog,
    h("header", null, h("h2", { id: "form-title" }, visible(title)), h("button.quiet", { type: "button", "aria-label": "Close", onclick: close }, "×")),
    form,
  );
  dialog.showModal();
  form.querySelector("input, select, textarea")?.focus();
}

function input({ name, kind = "text", value = "", options = [], hint = "", isFixed = false }) {
  const properties = { name, autocomplete: "off", spellcheck: "false", placeholder: hint, disabled: isFixed };
  if (kind === "select") {
    const select = h("select", { name, disabled: isFixed }, options.map(([one, text]) => h("option", { value: one }, text)));
    select.value = value;
    return select;
  }
  if (kind === "area") {
    const area = h("textarea", { ...properties, rows: "5" });
    area.value = value;
    return area;
  }
  const types = { number: "number", time: "datetime-local" };
  const field = h("input", { ...properties, type: types[kind] ?? "text", step: kind === "time" ? "1" : null });
  field.value = value;
  return field;
}

function row({ label, note }, element) {
  return h("label.form-row", null, h("span", null, label), element, note ? h("small", null, note) : null);
}

/** Return a whole number, or undefined for an empty field; throws with the name of the field. */
export function numberIn(text, name) {
  if (text.trim() === "") return undefined;
  if (!/^-?\d+$/.test(text.trim())) throw new Error(`${name} must be a whole number, got ${text}`);
  return Number(text);
}

/** Return the milliseconds of a local time, or undefined for an empty field. */
export function timeIn(text, name) {
  if (!text) return undefined;
  const found = new Date(text).getTime();
  if (Number.isNaN(found)) throw new Error(`${name} must be a time, got ${text}`);
  return found;
}

/** Return pairs of lines such as `name=value`. */
export function pairsIn(text, separator, name) {
  return text
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => {
      const at = line.indexOf(separator);
      if (at < 1) throw new Error(`${name} must be lines of name${separator}value, got ${line}`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    });
}
