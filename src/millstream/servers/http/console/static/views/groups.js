// Consumer groups with their lag.

import { Pages, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { badge, failure, head, More, nothing, Stage } from "../parts.js";
import { link } from "../routes.js";
import { matches, searchField, Table } from "../tables.js";

const REFRESH_MS = 2_000;
const PAGE = 200;

export function showGroups(place, { query, signal }) {
  const pages = new Pages("/v1/groups", "groups", {}, PAGE);
  let search = query.get("q") ?? "";
  const table = new Table({
    label: "Groups",
    columns: [
      { id: "group", label: "Group", class: "name", value: (row) => row.group, show: (row) => format.visible(row.group), title: (row) => format.visible(row.group) },
      figure("lag", "Lag", "Records left to read, over all partitions"),
      { id: "state", label: "State", value: (row) => row.state, stamp: (row) => row.state, show: (row) => badge(words(row.state), tone(row.state)) },
      figure("members", "Members"),
      figure("partitions", "Partitions", "Partitions with a committed offset"),
      { id: "kind", label: "Protocol", value: (row) => row.kind, show: (row) => row.kind, hint: "Who assigns the partitions: a member (classic) or the node (consumer)" },
    ],
    key: (row) => row.group,
    link: (row) => link(["groups", row.group]),
    sort: "group",
    empty: "No group matches.",
  });
  const more = new More("groups", async () => {
    await pages.more(signal);
    show();
  });
  const total = h("span.count");
  const field = searchField("Search groups", (text) => {
    search = text;
    history.replaceState(null, "", link("groups", { q: text }));
    show();
  }, search);
  const stage = new Stage(h("div", null, table.element, more.element));
  fill(place, head("Groups", { badges: [total], tools: [field] }), stage.element);

  function show() {
    const found = search ? pages.items.filter((row) => matches(row.group, search)) : pages.items;
    table.show(found);
    more.show(pages.items.length, pages.hasMore);
    const all = `${format.exact(pages.items.length)}${pages.hasMore ? "+" : ""}`;
    total.textContent = search ? `${format.exact(found.length)} of ${all}` : all;
  }

  repeat(
    REFRESH_MS,
    signal,
    async () => {
      await pages.refresh(signal);
      if (!pages.items.length) {
        total.textContent = "";
        stage.showState(
          nothing("No consumer groups yet", "A group is created when a Kafka consumer with a group.id joins it or commits an offset."),
        );
        return;
      }
      stage.showContent();
      show();
    },
    (error) => stage.showState(failure(error)),
  );
}

function figure(id, label, hint) {
  return {
    id,
    label,
    hint,
    isNumber: true,
    value: (row) => row[id],
    show: (row) => format.count(row[id]),
    title: (row) => format.exact(row[id]),
  };
}

/** Kafka's name of a state, as words. */
export function words(state) {
  return state.replaceAll("_", " ");
}

export function tone(state) {
  if (state === "stable") return "good";
  return ["empty", "dead"].includes(state) ? "plain" : "warn";
}
