// JSON for people: numbers as written, indented, with a color for each kind.

import { h } from "./dom.js";
import { visible } from "./format.js";

/** A number that JavaScript cannot represent: it is shown as written. */
export class Written {
  constructor(text) {
    this.text = text;
  }
}

const MAY_CHANGE = /\d{16}|\.\d*0(?!\d)|\d[eE]/;

/** Parse JSON; numbers that would change are kept as `Written`. */
export function parseExactly(text) {
  if (!MAY_CHANGE.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context && String(value) !== context.source
      ? new Written(context.source)
      : value,
  );
}

/** Yield the tokens of a value: kind and text. */
function* tokens(value, indent) {
  const inner = `${indent}  `;
  if (value instanceof Written) yield ["number", value.text];
  else if (Array.isArray(value)) yield* nested("[", value.map((one) => [null, one]), "]");
  else if (value !== null && typeof value === "object")
    yield* nested("{", Object.entries(value), "}");
  else if (typeof value === "string") yield ["string", JSON.stringify(value)];
  else yield [typeof value === "number" ? "number" : "word", String(value)];

  function* nested(open, parts, close) {
    if (!parts.length) {
      yield ["", open + close];
      return;
    }
    yield ["", open];
    for (const [at, [name, one]] of parts.entries()) {
      yield ["", `${at ? "," : ""}\n${inner}`];
      if (name !== null) {
        yield ["name", JSON.stringify(name)];
        yield ["", ": "];
      }
      yield* tokens(one, inner);
    }
    yield ["", `\n${indent}${close}`];
  }
}

/** Return a value as compact JSON. */
export function compact(value) {
  if (value instanceof Written) return value.text;
  if (Array.isArray(value)) return `[${value.map(compact).join(",")}]`;
  if (value !== null && typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, one]) => `${JSON.stringify(name)}:${compact(one)}`)
      .join(",")}}`;
  return JSON.stringify(value);
}

/** Return an element that shows an indented value, up to a number of characters. */
export function pretty(value, lengthMax) {
  const element = h("pre.json");
  let length = 0;
  for (const [kind, text] of tokens(value, "")) {
    const shown = visible(text, { keepsLines: true });
    element.append(kind ? h(`span.${kind}`, null, shown) : shown);
    length += shown.length;
    if (length > lengthMax) {
      element.append("\n… truncated: the value is too long to show");
      break;
    }
  }
  return element;
}
