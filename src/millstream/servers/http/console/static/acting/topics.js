// Actions on topics: create, change, delete, append a record.

import { get, part } from "../api.js";
import { exact } from "../format.js";
import { link } from "../routes.js";
import { change } from "./access.js";
import { numberIn, openForm, pairsIn } from "./forms.js";

const FORMATS = [
  ["json", "JSON"],
  ["text", "Text"],
  ["none", "No value (tombstone)"],
];

/** Append one record. */
export function produce(name, topic) {
  openForm({
    title: `Produce to ${name}`,
    fields: [
      { name: "key", label: "Key", note: "Empty for none." },
      { name: "format", label: "Format", kind: "select", options: FORMATS, value: "json" },
      { name: "value", label: "Value", kind: "area", hint: '{"n": 1}' },
      { name: "headers", label: "Headers", kind: "area", note: "One name=value in each line." },
      {
        name: "partition",
        label: "Partition",
        kind: "number",
        note: topic?.partition_count > 1 ? `0 to ${topic.partition_count - 1}; empty for that of the key, or any.` : "Empty for any.",
      },
    ],
    button: "Produce",
    work: async ({ key, format, value, headers, partition }) => {
      const answer = await change("POST", `/v1/topics/${part(name)}/records`, recordBody(key, format, value, headers, partition));
      return `Appended to partition ${answer.partition} at offset ${exact(answer.offsets[0])}.`;
    },
  });
}

/** The value goes into the body as it was typed, because numbers would lose digits otherwise. */
function recordBody(key, format, value, headers, partition) {
  const record = { key: key || null, headers: Object.fromEntries(pairsIn(headers, "=", "Headers")) };
  const index = numberIn(partition, "Partition");
  if (index !== undefined) record.partition = index;
  let text = "null";
  if (format === "text") text = JSON.stringify({ base64: base64Of(value) });
  if (format === "json") {
    try {
      JSON.parse(value);
    } catch (error) {
      throw new Error(`The value is not JSON: ${error.message}`);
    }
    text = value;
  }
  return `{"records": [${JSON.stringify(record).slice(0, -1)}, "value": ${text}}]}`;
}

function base64Of(text) {
  let found = "";
  for (const one of new TextEncoder().encode(text)) found += String.fromCharCode(one);
  return btoa(found);
}

const DURABILITY = ["fsync", "disk", "memory", "ephemeral"].map((one) => [one, one]);
const CLEANUP = [
  ["delete", "delete old records"],
  ["compact", "keep the last record of each key"],
  ["compact,delete", "both"],
];

/** Create a topic. */
export function createTopic() {
  openForm({
    title: "New topic",
    fields: [
      { name: "name", label: "Name", note: "Letters, digits, dots, dashes and underscores." },
      { name: "partitions", label: "Partitions", kind: "number", note: "Empty for the default of the node." },
      { name: "durability", label: "Durability", kind: "select", options: [["", "default of the node"], ...DURABILITY] },
      { name: "cleanup", label: "Cleanup", kind: "select", options: [["", "default"], ...CLEANUP] },
      { name: "configs", label: "Other configs", kind: "area", hint: "retention.ms=86400000", note: "One name=value in each line." },
    ],
    button: "Create",
    work: async ({ name, partitions, durability, cleanup, configs }) => {
      if (!name) throw new Error("The topic needs a name.");
      await refuseExisting(name);
      const body = { configs: Object.fromEntries(pairsIn(configs, "=", "Other configs")) };
      if (durability) body.durability = durability;
      if (cleanup) body.cleanup = cleanup;
      const count = numberIn(partitions, "Partitions");
      if (count !== undefined) body.partitions = count;
      await change("PUT", `/v1/topics/${part(name)}`, body);
      location.hash = link(["topics", name]);
      return `Created topic ${name}.`;
    },
  });
}

/** The same request would change a topic that exists. */
async function refuseExisting(name) {
  try {
    await get(`/v1/topics/${part(name)}/configs`);
  } catch (error) {
    if (error.status === 404) return;
    throw error;
  }
  throw new Error(`Topic ${name} exists already.`);
}

/** Add partitions to a topic; `topic` is its description, if it is known yet. */
export function addPartitions(name, topic, done) {
  openForm({
    title: `Partitions of ${name}`,
    text: "The number can only grow. Keys may go to other partitions from then on.",
    fields: [{ name: "partitions", label: "Partitions", kind: "number", value: String(topic?.partition_count ?? "") }],
    button: "Change",
    work: async ({ partitions }) => {
      const count = numberIn(partitions, "Partitions");
      if (count === undefined) throw new Error("Partitions must be a whole number.");
      await change("PUT", `/v1/topics/${part(name)}`, { partitions: count });
      done();
      return `${name} has ${exact(count)} partitions.`;
    },
  });
}

/** Delete a topic and its records. */
export function deleteTopic(name) {
  openForm({
    title: `Delete ${name}`,
    text: "The topic and all its records are deleted for good, and so is a queue of that name.",
    button: "Delete topic",
    mustType: name,
    isDanger: true,
    work: async () => {
      await change("DELETE", `/v1/topics/${part(name)}`);
      location.hash = link("topics");
      return `Deleted topic ${name}.`;
    },
  });
}

/** Change one config of a topic, or reset it to its default. */
export function editConfig(name, config, done) {
  openForm({
    title: config.name,
    text: config.meaning.replaceAll("`", ""),
    fields: [
      { name: "value", label: "Value", kind: config.value.length > 60 ? "area" : "text", value: config.value, note: `Allowed: ${config.allowed}. Empty for the default${config.default ? `, ${config.default}` : ""}.` },
    ],
    button: "Change",
    work: async ({ value }) => {
      const configs = { [config.name]: value.trim() === "" ? null : value.trim() };
      await change("PUT", `/v1/topics/${part(name)}`, { configs });
      done();
      return `Changed ${config.name} of ${name}.`;
    },
  });
}
