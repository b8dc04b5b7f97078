// The page of the HTTP API: shows /openapi.json of this node, one entry per operation.

import { fill, h } from "./dom.js";

const DEPTH_MAX = 2; // Objects within objects that are listed.
const METHODS = ["get", "put", "post", "delete"];
const main = document.getElementById("operations");
const filter = document.getElementById("filter");

let entries = [];

/** Return the schema that a reference names. */
function resolved(document_, schema) {
  if (!schema || !schema.$ref) return schema || {};
  return schema.$ref.split("/").slice(1).reduce((at, name) => at[name], document_);
}

/** Describe the values of a schema in a few words. */
function words(document_, schema) {
  const name = schema.$ref ? schema.$ref.split("/").pop() : null;
  if (name) return name;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.anyOf) return schema.anyOf.map((one) => words(document_, one)).join(" or ");
  if (schema.type === "array") return `list of ${words(document_, schema.items || {})}`;
  if (schema.type === "object" && schema.additionalProperties)
    return `object of ${words(document_, schema.additionalProperties)}`;
  return (schema.type || "any value") + limits(schema);
}

function limits(schema) {
  const least = schema.minimum ?? schema.minLength ?? schema.minItems;
  const most = schema.maximum ?? schema.maxLength ?? schema.maxItems;
  if (least !== undefined && most !== undefined) return ` (${least} to ${most})`;
  if (most !== undefined) return ` (at most ${most})`;
  return least !== undefined ? ` (at least ${least})` : "";
}

/** List names with what they may be. */
function fields(rows) {
  return h("dl.fields", null, rows.map(([name, isNeeded, text]) => [
    h(isNeeded ? "dt.needed" : "dt", isNeeded ? { title: "required" } : null, name),
    h("dd", null, text),
  ]));
}

function parameters(document_, operation) {
  const rows = (operation.parameters || []).map((given) => resolved(document_, given)).map((one) => [
    one.name,
    one.required,
    `${one.in}, ${words(document_, one.schema || {})}${one.description ? `: ${one.description}` : ""}`,
  ]);
  return rows.length ? [h("h3", null, "Parameters"), fields(rows)] : [];
}

/** List the fields of an object; those of objects in it follow, as `records[].key`. */
function properties(document_, schema, prefix, depth) {
  const needed = schema.required || [];
  return Object.entries(schema.properties || {}).flatMap(([name, part]) => {
    const row = [
      prefix + name,
      needed.includes(name),
      words(document_, part) + (part.description ? `: ${part.description}` : ""),
    ];
    const inner = depth < DEPTH_MAX ? objectIn(document_, part) : null;
    return inner
      ? [row, ...properties(document_, inner.schema, `${prefix}${name}${inner.suffix}.`, depth + 1)]
      : [row];
  });
}

/** Return the one object that a schema, or the items of its list, may be. */
function objectIn(document_, part) {
  for (const option of part.anyOf || [part]) {
    const isList = option.type === "array";
    const schema = resolved(document_, isList ? option.items : option);
    if (schema.properties) return { schema, suffix: isList ? "[]" : "" };
  }
  return null;
}

/** Show a body: its fields, and an example. */
function content(document_, title, described) {
  const [type, media] = Object.entries(described.content || {})[0] || [];
  if (!media) return [];
  const schema = resolved(document_, media.schema);
  const rows = properties(document_, schema, "", 0);
  const example = media.example ?? media.examples;
  return [
    h("h3", null, `${title} (${type})`),
    rows.length ? fields(rows) : null,
    example === undefined ? null
      : h("pre", null, typeof example === "string" ? example : JSON.stringify(example, null, 2)),
  ];
}

function responses(document_, operation) {
  const all = Object.entries(operation.responses).map(([status, given]) => [
    status, resolved(document_, given)]);
  const good = all.filter(([status]) => status < "400");
  return [
    good.map(([status, answer]) => content(document_, `Response ${status}`, answer)),
    h("h3", null, "Statuses"),
    fields(all.map(([status, answer]) => [status, false, answer.description || ""])),
  ];
}

function entry(document_, method, path, operation) {
  const id = operation.operationId;
  const details = h("details", { id },
    h("summary", null,
      h(`span.method.${method}`, null, method.toUpperCase()),
      h("code", null, path),
      h("span.muted", null, operation.summary)),
    h("div.body", null,
      operation.description === operation.summary ? null : h("p", null, operation.description),
      parameters(document_, operation),
      operation.requestBody ? content(document_, "Body", resolved(document_, operation.requestBody)) : [],
      responses(document_, operation)));
  const text = `${method} ${path} ${operation.summary} ${operation.description}`.toLowerCase();
  return { tag: (operation.tags || ["other"])[0], details, text };
}

function show() {
  const searched = filter.value.trim().toLowerCase();
  const shown = entries.filter((one) => one.text.includes(searched));
  const tags = [...new Set(shown.map((one) => one.tag))];
  fill(main, shown.length ? null : h("p.muted", null, `No operation has "${filter.value}".`),
    tags.map((tag) => h("section", null, h("h2", null, tag),
      shown.filter((one) => one.tag === tag).map((one) => one.details))));
}

function openNamed() {
  const details = document.getElementById(location.hash.slice(1));
  if (details instanceof HTMLDetailsElement) {
    details.open = true;
    details.scrollIntoView();
  }
}

async function start() {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`the node answered with ${answer.status}`);
  const document_ = await answer.json();
  document.getElementById("version").textContent = document_.info.version;
  entries = Object.entries(document_.paths).flatMap(([path, operations]) =>
    METHODS.filter((method) => operations[method]).map((method) =>
      entry(document_, method, path, operations[method])));
  show();
  openNamed();
  filter.addEventListener("input", show);
  window.addEventListener("hashchange", openNamed);
}

start().catch((error) => fill(main, h("p", { role: "alert" }, `Cannot show the API: ${error.message}.`)));
