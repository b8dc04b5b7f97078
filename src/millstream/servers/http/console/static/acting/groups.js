// Actions on groups: reset offsets after a preview, delete.

import { part } from "../api.js";
import { h } from "../dom.js";
import { exact, many, NOTHING } from "../format.js";
import { link } from "../routes.js";
import { change } from "./access.js";
import { numberIn, openForm, timeIn } from "./forms.js";

const TARGETS = [
  ["earliest", "First record"],
  ["latest", "End"],
  ["offset", "Offset"],
  ["time", "Time"],
];

/** Reset the committed offsets of a group. */
export function resetOffsets(name, topics, done) {
  const path = `/v1/groups/${part(name)}/offsets`;
  openForm({
    title: `Reset offsets of ${name}`,
    text: "Members have to leave the group first: they would continue from their own positions.",
    fields: [
      { name: "topic", label: "Topic", value: topics[0] ?? "" },
      { name: "partition", label: "Partition", kind: "number", note: "Empty for all." },
      { name: "to", label: "To", kind: "select", options: TARGETS, value: "earliest" },
      { name: "offset", label: "Offset", kind: "number", note: "If the target is an offset." },
      { name: "time", label: "Time", kind: "time", note: "If the target is a time: the first record at or after it." },
    ],
    button: "Reset offsets",
    preview: async (values) => positions((await change("PUT", path, { ...resetBody(values), preview: true })).offsets),
    work: async (values) => {
      const { offsets } = await change("PUT", path, resetBody(values));
      done();
      return `Reset ${many(offsets.length, "partition")} of ${name}.`;
    },
  });
}

function resetBody({ topic, partition, to, offset, time }) {
  const body = { topic, to };
  const index = numberIn(partition, "Partition");
  if (index !== undefined) body.partition = index;
  if (to === "offset") body.to = numberIn(offset, "Offset") ?? missing("Offset");
  if (to === "time") body.to = { timestamp: timeIn(time, "Time") ?? missing("Time") };
  return body;
}

function missing(name) {
  throw new Error(`${name} must be set.`);
}

function positions(offsets) {
  const cell = (text) => h("td.number", null, text);
  const rows = offsets.map((one) =>
    h("tr", null, h("th.number", { scope: "row" }, String(one.partition)), cell(one.previous === null ? NOTHING : exact(one.previous)), cell(exact(one.committed)), cell(exact(one.lag))),
  );
  const heads = ["Partition", "Committed", "New", "New lag"].map((text) => h("th.number", { scope: "col" }, text));
  return h("div.table", { role: "region", "aria-label": "Preview", tabindex: "0" }, h("table", { "aria-label": "Preview" }, h("thead", null, h("tr", null, heads)), h("tbody", null, rows)));
}

/** Delete a group without members. */
export function deleteGroup(name) {
  openForm({
    title: `Delete ${name}`,
    text: "The group and its committed offsets are deleted for good.",
    button: "Delete group",
    mustType: name,
    isDanger: true,
    work: async () => {
      await change("DELETE", `/v1/groups/${part(name)}`);
      location.hash = link("groups");
      return `Deleted group ${name}.`;
    },
  });
}
