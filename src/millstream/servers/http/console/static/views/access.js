// Access: who may do what. Users, rules and tokens, without secrets.

import { action } from "../acting/access.js";
import { revokeToken } from "../acting/tokens.js";
import { get, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { badge, facts, failure, Figures, head, Stage } from "../parts.js";
import { session } from "../session.js";
import { matches, searchField, Table } from "../tables.js";

const REFRESH_MS = 5_000;

export function showAccess(place, { query, signal }) {
  let search = query.get("q") ?? "";
  let found = { users: [], acls: [], tokens: [] };
  const figures = new Figures([
    ["users", "Users"],
    ["acls", "Rules"],
    ["tokens", "Tokens"],
  ]);
  const users = userTable();
  const acls = aclTable();
  const tokens = tokenTable(() => refresh());
  const you = h("div");
  const content = h(
    "div",
    null,
    figures.element,
    h("section.card.defaults", null, h("h2", null, "You"), you),
    h("h2", null, "Users"),
    users.element,
    h("h2", null, "Rules"),
    h("p.hint", null, "A rule that denies precedes those that allow. What no rule allows is refused. Users in access.super_users may do everything."),
    acls.element,
    h("h2", null, "Tokens"),
    tokens.element,
  );
  const stage = new Stage(content);

  function show() {
    const pick = (rows, text) => (search ? rows.filter((row) => matches(text(row), search)) : rows);
    users.show(pick(found.users, (row) => row.user));
    acls.show(pick(found.acls, (row) => [row.user, row.permission, row.operation, row.resource_type, row.resource, row.host].join(" ")));
    tokens.show(pick(found.tokens, (row) => [row.id, row.user, row.note, ...row.scopes, ...row.prefixes].join(" ")));
  }

  const field = searchField("Search users, rules and tokens", (text) => {
    search = text;
    show();
  }, search);
  fill(place, head("Access", { tools: [field] }), stage.element);
  const refresh = repeat(
    REFRESH_MS,
    signal,
    async () => {
      const [listed, rules, issued] = await Promise.all([
        get("/v1/access/users", {}, signal),
        get("/v1/access/acls", {}, signal),
        get("/v1/access/tokens", {}, signal),
      ]);
      found = { users: usersOf(listed.users, rules.acls, issued.tokens), acls: rules.acls, tokens: issued.tokens };
      stage.showContent();
      figures.set("users", format.exact(found.users.length));
      figures.set("acls", format.exact(found.acls.length));
      figures.set("tokens", format.exact(found.tokens.length));
      const { principal, token, host, cluster } = session.identity ?? {};
      fill(you, facts([
        ["Principal", principal],
        ["Token", token ?? "none"],
        ["Address", host],
        ["On the cluster", cluster?.map((name) => name.replaceAll("_", " ")).join(", ") || "nothing"],
      ]));
      show();
    },
    (error) => stage.showState(failure(error)),
  );
}

/** Everyone who has a password, a token or a rule. */
function usersOf(listed, acls, tokens) {
  const users = new Map();
  const user = (name) => {
    if (!users.has(name)) users.set(name, { user: name, mechanisms: [], tokens: 0, acls: 0 });
    return users.get(name);
  };
  for (const one of listed) user(one.user).mechanisms = one.mechanisms;
  for (const one of tokens) user(one.user).tokens += 1;
  for (const one of acls) user(one.user).acls += 1;
  return [...users.values()].sort((a, b) => (a.user < b.user ? -1 : 1));
}

function text(id, label, show = (row) => row[id], kind = "name") {
  return { id, label, class: kind, value: show, show: (row) => format.visible(show(row) || format.NOTHING), title: (row) => format.visible(show(row)) };
}

function userTable() {
  const number = (id, label) => ({ id, label, isNumber: true, value: (row) => row[id], show: (row) => format.count(row[id]) });
  return new Table({
    label: "Users",
    columns: [
      text("user", "User", (row) => (row.user === "*" ? "* (everyone who has logged in)" : row.user)),
      text("mechanisms", "Password", (row) => row.mechanisms.join(", ")),
      number("tokens", "Tokens"),
      number("acls", "Rules"),
    ],
    key: (row) => row.user,
    empty: "Nobody has a password, a token or a rule.",
  });
}

function aclTable() {
  const tone = (row) => (row.permission === "deny" ? "bad" : "good");
  return new Table({
    label: "Rules",
    columns: [
      text("user", "User"),
      { id: "permission", label: "Permission", value: (row) => row.permission, stamp: (row) => row.permission, show: (row) => badge(row.permission, tone(row)) },
      text("operation", "Operation", (row) => row.operation.replaceAll("_", " ")),
      text("resource_type", "On", (row) => row.resource_type.replaceAll("_", " ")),
      text("resource", "Name", nameOf),
      text("host", "From", (row) => (row.host === "*" ? "everywhere" : row.host)),
    ],
    key: (row) => JSON.stringify(row),
    empty: "There are no rules: only super users may do something.",
  });
}

function nameOf(row) {
  if (row.resource_type === "cluster") return "";
  if (row.pattern === "prefixed") return `${row.resource}… (prefix)`;
  return row.resource === "*" ? "* (all)" : row.resource;
}

function tokenTable(done) {
  const isOver = (row) => row.expires_ms !== null && row.expires_ms <= Date.now();
  return new Table({
    label: "Tokens",
    columns: [
      text("id", "Id", (row) => row.id, "mono"),
      text("user", "User"),
      text("note", "Note"),
      text("scopes", "For", (row) => row.scopes.join(", ") || "everything"),
      text("prefixes", "Names", (row) => row.prefixes.map((prefix) => `${prefix}…`).join(", ") || "all"),
      { id: "created_ms", label: "Created", value: (row) => row.created_ms, show: (row) => format.moment(row.created_ms) },
      { id: "expires_ms", label: "Expires", value: (row) => row.expires_ms, stamp: (row) => `${row.expires_ms} ${isOver(row)}`, show: (row) => (isOver(row) ? badge("expired", "bad") : row.expires_ms === null ? "never" : format.moment(row.expires_ms)) },
      { id: "revoke", label: "", class: "writes", stamp: (row) => row.id, show: (row) => button(row, done) },
    ],
    key: (row) => row.id,
    empty: "There are no tokens.",
  });
}

function button(row, done) {
  if (!session.may("alter")) return "";
  const revoke = action("Revoke", () => revokeToken(row, done), { isDanger: true });
  revoke.setAttribute("aria-label", `Revoke token ${row.id} of ${row.user}`);
  return revoke;
}
