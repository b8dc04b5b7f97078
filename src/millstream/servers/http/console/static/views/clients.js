// Clients: open connections, and quotas.

import { action } from "../acting/access.js";
import { RATES, removeQuota, setQuota } from "../acting/quotas.js";
import { get, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { badge, facts, failure, Figures, head, Stage } from "../parts.js";
import { Table } from "../tables.js";

const REFRESH_MS = 2_000;

export function showClients(place, { signal }) {
  const figures = new Figures([
    ["kafka", "Kafka"],
    ["http", "HTTP"],
    ["quotas", "Quotas"],
  ]);
  const connections = connectionTable();
  const quotas = quotaTable(() => refresh());
  const defaults = h("div");
  const content = h(
    "div",
    null,
    figures.element,
    h("h2", null, "Connections"),
    connections.element,
    h("h2", null, "Quotas"),
    quotas.element,
    h("section.card.defaults", null, h("h2", null, "Clients without a quota of their own"), defaults),
  );
  const stage = new Stage(content);
  fill(place, head("Clients", { tools: [action("New quota…", () => setQuota(null, refresh))] }), stage.element);
  const refresh = repeat(
    REFRESH_MS,
    signal,
    async () => {
      const [open, set] = await Promise.all([get("/v1/node/connections", {}, signal), get("/v1/quotas", {}, signal)]);
      stage.showContent();
      figures.set("kafka", format.exact(open.kafka), `of at most ${format.exact(open.kafka_max)} connections`);
      figures.set("http", format.exact(open.http), `of at most ${format.exact(open.http_max)} connections`);
      figures.set("quotas", format.exact(set.quotas.length));
      connections.show(open.clients);
      quotas.show(set.quotas);
      const text = RATES.map(([name, label]) => [label, set.defaults[name] === undefined ? "no limit" : format.exact(set.defaults[name])]);
      const stamp = JSON.stringify(text);
      if (defaults.dataset.stamp !== stamp) {
        defaults.dataset.stamp = stamp;
        fill(defaults, facts(text));
      }
    },
    (error) => stage.showState(failure(error)),
  );
}

function connectionTable() {
  const number = (id, label, hint) => ({ id, label, hint, isNumber: true, value: (row) => row[id], show: (row) => format.count(row[id]), title: (row) => format.exact(row[id]) });
  return new Table({
    label: "Connections",
    columns: [
      { id: "client_id", label: "Client id", class: "name", value: (row) => row.client_id ?? "", show: (row) => format.visible(row.client_id || format.NOTHING), title: (row) => format.visible(row.client_id ?? "HTTP connections have none; every request has its own") },
      { id: "server", label: "Server", value: (row) => row.server, stamp: (row) => row.server, show: (row) => badge(row.server, "plain") },
      { id: "address", label: "Address", value: (row) => row.address, show: (row) => format.visible(row.address) },
      number("connections", "Connections"),
      number("requests", "In flight", "Requests in flight, including fetches that wait for records"),
      { id: "idle_ms", label: "Idle", isNumber: true, hint: "Time since the last request", value: (row) => row.idle_ms, show: (row) => format.duration(row.idle_ms) },
    ],
    key: (row) => `${row.server} ${row.address} ${row.client_id}`,
    empty: "No connections.",
  });
}

/** The name of a user or client id in words. */
function nameOf(entity) {
  if (entity === undefined) return "any";
  return typeof entity === "string" ? entity : "default";
}

function quotaTable(done) {
  return new Table({
    label: "Quotas",
    columns: [
      { id: "client_id", label: "Client id", class: "name", value: (row) => nameOf(row.client_id), show: (row) => format.visible(nameOf(row.client_id)) },
      { id: "user", label: "User", class: "name", value: (row) => nameOf(row.user), show: (row) => format.visible(nameOf(row.user)) },
      ...RATES.map(([id, label]) => ({ id, label, isNumber: true, value: (row) => row.rates[id], show: (row) => format.count(row.rates[id]), title: (row) => format.exact(row.rates[id]) })),
      { id: "edit", label: "", class: "writes", stamp: (row) => JSON.stringify(row), show: (row) => buttons(row, done) },
    ],
    key: (row) => JSON.stringify([row.user, row.client_id]),
    empty: "Nobody has a quota.",
  });
}

function buttons(row, done) {
  const words = `client id ${nameOf(row.client_id)}, user ${nameOf(row.user)}`;
  const edit = action("Edit", () => setQuota(row, done));
  const remove = action("Remove", () => removeQuota(row, words, done), { isDanger: true });
  edit.setAttribute("aria-label", `Edit quota of ${words}`);
  remove.setAttribute("aria-label", `Remove quota of ${words}`);
  return [edit, " ", remove];
}
