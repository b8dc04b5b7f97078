// Keyboard shortcuts. Views add theirs; typing into a field triggers none.

const SEQUENCE_MS = 1_500;

const bindings = new Map();
let prefix = "";
let prefixTimer = 0;

/** Bind a key, or a sequence of two (`g t`), until `signal`. */
export function bind(keys, work, signal) {
  bindings.set(keys, work);
  signal?.addEventListener("abort", () => {
    if (bindings.get(keys) === work) bindings.delete(keys);
  });
}

function isTyping(target) {
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

/** Start listening. */
export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return; // Which closes itself with Escape.
    const key = event.key;
    if (isTyping(event.target)) {
      if (key === "Escape") {
        event.preventDefault();
        if (event.target.value && event.target.type === "search") {
          event.target.value = "";
          event.target.dispatchEvent(new Event("input", { bubbles: true }));
        } else event.target.blur();
      } else if (key === "ArrowDown" && event.target.type === "search") {
        event.preventDefault();
        moveRow(1);
      }
      return;
    }
    const work = bindings.get(prefix ? `${prefix} ${key}` : key);
    clearTimeout(prefixTimer);
    const isFirst = !prefix && [...bindings.keys()].some((keys) => keys.startsWith(`${key} `));
    prefix = "";
    if (work) {
      if (work(event) !== false) event.preventDefault();
    } else if (isFirst) {
      prefix = key;
      prefixTimer = setTimeout(() => (prefix = ""), SEQUENCE_MS);
      event.preventDefault();
    }
  });
}

/** Move the focus up or down in the focused table, or in the first one. */
export function moveRow(step) {
  const all = [...document.querySelectorAll("main [data-row]")].filter((row) => row.offsetParent);
  if (!all.length) return false;
  const now = document.activeElement?.closest?.("[data-row]");
  const at = now ? all.indexOf(now) + step : step > 0 ? 0 : all.length - 1;
  const row = all[Math.max(0, Math.min(all.length - 1, at))];
  (row.querySelector("[data-row-focus]") ?? row).focus();
  row.scrollIntoView({ block: "nearest" });
  return true;
}
