// Decoders of values, by the format that a topic declares.

import { get, part } from "../api.js";
import { avroDecoder } from "./avro.js";
import { decodeMessagePack } from "./msgpack.js";

const FORMAT = "millstream.value.format";
const SCHEMA = "millstream.value.schema";

/** How the values of a topic are shown: a name, and `decode(bytes)`; null if they need no decoding. */
export function decoderFor(configs) {
  try {
    if (configs[FORMAT] === "avro") return { name: "Avro", decode: avroDecoder(configs[SCHEMA] ?? "") };
  } catch (error) {
    return { name: "Avro", decode: () => { throw new Error(`the topic's schema cannot be used: ${error.message}`); } };
  }
  return configs[FORMAT] === "msgpack" ? { name: "MessagePack", decode: decodeMessagePack } : null;
}

/** Return the decoders of topics by name. */
export async function decodersOf(topics, signal) {
  const found = await Promise.all(
    topics.map(async (name) => {
      try {
        const topic = await get(`/v1/topics/${part(name)}/configs`, {}, signal);
        const configs = Object.fromEntries(topic.configs.map((one) => [one.name, one.value]));
        return [name, decoderFor(configs)];
      } catch {
        return [name, null]; // The view tells what is wrong with the topic.
      }
    }),
  );
  return new Map(found);
}
