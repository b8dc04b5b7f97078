// One group: its members, and its committed offsets.

import { action } from "../acting/access.js";
import { deleteGroup, resetOffsets } from "../acting/groups.js";
import { get, part, repeat } from "../api.js";
import { fill, h } from "../dom.js";
import * as format from "../format.js";
import { badge, bar, failure, Figures, head, Stage } from "../parts.js";
import { link } from "../routes.js";
import { Table } from "../tables.js";
import { tone, words } from "./groups.js";

const REFRESH_MS = 1_500;
const SHOWN_PARTITIONS = 12;

export function showGroup(place, { names: [name], signal }) {
  const state = h("span");
  const figures = new Figures([
    ["lag", "Lag"],
    ["members", "Members"],
    ["partitions", "Partitions"],
    ["topics", "Topics"],
    ["kind", "Protocol"],
  ]);
  let mostLag = 1;
  const offsets = offsetTable(() => mostLag);
  const members = memberTable();
  const stage = new Stage(
    h(
      "div",
      null,
      figures.element,
      h("h2", null, "Offsets"),
      h("div.group-offsets", null, offsets.element),
      h("h2", null, "Members"),
      members.element,
    ),
  );
  let topics = [];
  const tools = [
    action("Reset offsets…", () => resetOffsets(name, topics, refresh)),
    action("Delete…", () => deleteGroup(name), { isDanger: true }),
  ];
  fill(place, head(name, { path: [["Groups", link("groups")]], badges: [state], tools }), stage.element);

  const refresh = repeat(
    REFRESH_MS,
    signal,
    async () => {
      const group = await get(`/v1/groups/${part(name)}`, {}, signal);
      stage.showContent();
      fill(state, badge(words(group.state), tone(group.state)));
      figures.set("lag", format.count(group.lag), format.exact(group.lag));
      figures.set("members", format.count(group.members.length));
      figures.set("partitions", format.count(group.partitions ?? group.offsets.length));
      topics = [...new Set(group.offsets.map((one) => one.topic))];
      figures.set("topics", format.count(topics.length));
      figures.set("kind", group.kind);
      mostLag = Math.max(1, ...group.offsets.map((one) => one.lag ?? 0));
      const clients = new Map(group.members.map((one) => [one.id, one]));
      offsets.show(group.offsets.map((one) => ({ ...one, who: clients.get(one.member) })));
      members.show(group.members);
    },
    (error) => stage.showState(failure(error, "groups")),
  );
}

function offsetTable(mostLag) {
  const figure = (id, label, hint) => ({
    id,
    label,
    hint,
    isNumber: true,
    value: (row) => row[id],
    show: (row) => format.exact(row[id]),
  });
  return new Table({
    label: "Offsets",
    columns: [
      { id: "topic", label: "Topic", class: "name", value: (row) => row.topic, show: (row) => format.visible(row.topic) },
      { ...figure("partition", "Partition"), show: (row) => String(row.partition) },
      {
        id: "lag",
        label: "Lag",
        class: "lag",
        isNumber: true,
        value: (row) => row.lag,
        stamp: (row) => `${row.lag} ${mostLag()}`,
        show: (row) => [
          bar((row.lag ?? 0) / mostLag(), row.lag ? "warn" : "good"),
          h("span.lag-number", null, format.count(row.lag)),
        ],
        title: (row) => format.exact(row.lag),
      },
      figure("committed", "Committed", "The next offset that the group reads"),
      figure("end", "End", "The offset after the last record"),
      {
        id: "member",
        label: "Member",
        class: "name",
        value: (row) => row.who?.client_id ?? row.member ?? "",
        show: (row) => format.visible(row.who?.client_id || row.member || format.NOTHING),
        title: (row) => format.visible(row.member ?? "Not assigned"),
      },
    ],
    key: (row) => `${row.topic} ${row.partition}`,
    link: (row) => link(["topics", row.topic]),
    empty: "The group has committed nothing yet.",
  });
}

function memberTable() {
  return new Table({
    label: "Members",
    columns: [
      { id: "client", label: "Client", class: "name", show: (row) => format.visible(row.client_id || format.NOTHING), title: (row) => format.visible(row.client_id) },
      { id: "host", label: "Host", show: (row) => format.visible(row.host) },
      { id: "count", label: "Partitions", isNumber: true, show: (row) => format.exact(row.partitions.length) },
      {
        id: "partitions",
        label: "Which",
        class: "wrap",
        show: (row) => assigned(row.partitions),
      },
      { id: "instance", label: "Instance", show: (row) => format.visible(row.instance_id ?? format.NOTHING) },
      { id: "id", label: "Member id", class: "name mono", show: (row) => format.visible(row.id), title: (row) => format.visible(row.id) },
    ],
    key: (row) => row.id,
    empty: "The group has no members; its committed offsets are kept.",
  });
}

function assigned(partitions) {
  const shown = partitions
    .slice(0, SHOWN_PARTITIONS)
    .map((one) => `${format.visible(one.topic)}/${one.partition}`)
    .join(", ");
  const left = partitions.length - SHOWN_PARTITIONS;
  return left > 0 ? `${shown} and ${left} more` : shown || format.NOTHING;
}
