// Who reads a topic: groups with their lag, live connections, workers of a queue.

import { get, part, repeat } from "../../api.js";
import { fill, h } from "../../dom.js";
import * as format from "../../format.js";
import { badge, failure, Stage } from "../../parts.js";
import { link } from "../../routes.js";
import { Table } from "../../tables.js";
import { tone, words } from "../groups.js";

const REFRESH_MS = 3_000;
const PAGES_MAX = 20;

export function showReaders(inside, topic, signal) {
  const number = (id, label, hint) => ({ id, label, hint, isNumber: true, value: (row) => row[id], show: (row) => format.count(row[id]), title: (row) => format.exact(row[id]) });
  const groups = new Table({
    label: "Groups",
    columns: [
      { id: "group", label: "Group", class: "name", value: (row) => row.group, show: (row) => format.visible(row.group), title: (row) => format.visible(row.group) },
      number("lag", "Lag", "Records of this topic left to read"),
      { id: "state", label: "State", value: (row) => row.state, stamp: (row) => row.state, show: (row) => badge(words(row.state), tone(row.state)) },
      number("members", "Members", "Members that have partitions of this topic"),
      number("partitions", "Partitions", "Partitions of this topic with a committed offset"),
    ],
    key: (row) => row.group,
    link: (row) => link(["groups", row.group]),
    sort: "lag",
    isDescending: true,
    empty: "No consumer group reads this topic.",
  });
  const watchers = new Table({
    label: "Live connections",
    columns: [
      { id: "client_id", label: "Client id", class: "name", show: (row) => format.visible(row.client_id || "no name"), title: (row) => format.visible(row.client_id) },
      number("connections", "Connections"),
    ],
    key: (row) => row.client_id,
    empty: "Nobody watches this topic live.",
  });
  const queue = h("p.hint", { hidden: true }, "Workers of the queue ", h("a", { href: link(["queues", topic]) }, format.visible(topic)), " claim the records as jobs.");
  const note = h("p.hint", null, "Consumers without a group leave no trace, so they are not listed.");
  const stage = new Stage(h("div", null, queue, groups.element, h("h2", null, "Live connections"), watchers.element, note));
  inside.append(stage.element);
  repeat(
    REFRESH_MS,
    signal,
    async () => {
      const found = await readers(topic, signal);
      stage.showContent();
      queue.hidden = !found.is_queue;
      groups.show(found.groups);
      watchers.show(found.watchers);
      fill(note, found.isAll ? "Consumers without a group leave no trace, so they are not listed." : "There are more groups than this page looks at.");
    },
    (error) => stage.showState(failure(error)),
  );
}

/** A page may be empty though there are more groups. */
async function readers(topic, signal) {
  const groups = [];
  let after = null;
  let found;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    found = await get(`/v1/topics/${part(topic)}/readers`, { after, limit: 500 }, signal);
    groups.push(...found.groups);
    after = found.next;
    if (after === null) break;
  }
  return { ...found, groups, isAll: after === null };
}
