// Which view the address names: `#/topics/orders/segments?partition=1`.

/** What there is, in the order of the navigation: its letter goes behind `g`. */
export const VIEWS = [
  { name: "overview", title: "Overview", letter: "o" },
  { name: "topics", title: "Topics", letter: "t" },
  { name: "tail", title: "Tail", letter: "l" },
  { name: "groups", title: "Groups", letter: "g" },
  { name: "queues", title: "Queues", letter: "q" },
  { name: "pipelines", title: "Pipelines", letter: "p" },
  { name: "health", title: "Health", letter: "h" },
];

/** Return the names in a hash, and its query. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const names = path.split("/").filter(Boolean).map(decoded);
  return { names: names.length ? names : ["overview"], query: new URLSearchParams(query) };
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name; // Somebody typed it; it names nothing.
  }
}

/** Return the hash for some names and a query. */
export function link(names, query = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const one of [value].flat())
      if (one !== null && one !== undefined && one !== "") found.append(name, one);
  const text = found.toString();
  return `#/${[names].flat().map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Where Escape leads: from a thing to the list it is in. */
export function above(hash) {
  const { names } = parse(hash);
  if (names.length > 1) return link(names.slice(0, 1));
  return names[0] === "overview" ? null : link("overview");
}
