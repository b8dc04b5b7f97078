// Routes: `#/topics/orders/segments?partition=1`.

/** All views in the order of the navigation; `letter` follows the key `g`. */
export const VIEWS = [
  { name: "overview", title: "Overview", letter: "o" },
  { name: "topics", title: "Topics", letter: "t" },
  { name: "tail", title: "Tail", letter: "l" },
  { name: "groups", title: "Groups", letter: "g" },
  { name: "queues", title: "Queues", letter: "q" },
  { name: "pipelines", title: "Pipelines", letter: "p" },
  { name: "clients", title: "Clients", letter: "c" },
  { name: "health", title: "Health", letter: "h" },
  { name: "cluster", title: "Cluster", letter: "n" },
  { name: "access", title: "Access", letter: "a" },
];

/** Parse a hash into names and query. */
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

/** Return the hash of names and a query. */
export function link(names, query = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const one of [value].flat())
      if (one !== null && one !== undefined && one !== "") found.append(name, one);
  const text = found.toString();
  return `#/${[names].flat().map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Target of Escape: the list of an item. */
export function above(hash) {
  const { names } = parse(hash);
  if (names.length > 1) return link(names.slice(0, 1));
  return names[0] === "overview" ? null : link("overview");
}
