// Avro records in the binary encoding, as JSON values.

import { BytesReader, float, packed, whole } from "./bytes_reader.js";

/** Magic byte and schema id, which the serializers of schema registries put before a record. */
const FRAME_SIZE = 5;

/** Return a decoder for a schema; throws if the schema cannot be used. */
export function avroDecoder(text) {
  const read = compile(JSON.parse(text), new Map(), "");

  function decode(data) {
    const reader = new BytesReader(data);
    const found = read(reader);
    if (!reader.isAtEnd) throw new Error("there are bytes after the record");
    return found;
  }

  return (data) => {
    try {
      return decode(data);
    } catch (error) {
      if (data[0] !== 0 || data.length <= FRAME_SIZE) throw error;
      return decode(data.subarray(FRAME_SIZE));
    }
  };
}

function long(reader) {
  let found = 0n;
  for (let shift = 0n; shift < 70n; shift += 7n) {
    const byte = reader.byte();
    found |= BigInt(byte & 0x7f) << shift;
    if (byte < 0x80) return BigInt.asIntN(64, (found >> 1n) ^ -(found & 1n));
  }
  throw new Error("a number has too many bytes");
}

const size = (reader) => Number(long(reader));

const PRIMITIVES = {
  null: () => null,
  boolean: (reader) => reader.byte() !== 0,
  int: (reader) => whole(long(reader)),
  long: (reader) => whole(long(reader)),
  float: (reader) => float(reader.view.getFloat32(reader.step(4), true)),
  double: (reader) => float(reader.view.getFloat64(reader.step(8), true)),
  bytes: (reader) => packed(reader.bytes(size(reader))),
  string: (reader) => reader.text(size(reader)),
};

/** Return the function that reads a type. `names` has the named types so far. */
function compile(type, names, space) {
  if (typeof type === "string") {
    if (Object.hasOwn(PRIMITIVES, type)) return PRIMITIVES[type];
    const full = qualified(type, space);
    // A record may refer to itself, so the type is looked up when a value is read.
    if (!names.has(full)) throw new Error(`the schema has no type ${type}`);
    return (reader) => reader.nested(() => names.get(full)(reader));
  }
  if (Array.isArray(type)) return union(type.map((one) => compile(one, names, space)));
  const logical = LOGICAL[type.logicalType]?.(type);
  if (logical) return logical;
  switch (type.type) {
    case "record":
    case "error":
      return record(type, names, space);
    case "enum":
      return named(type, names, space, (reader) => symbol(type, size(reader)));
    case "fixed":
      return named(type, names, space, (reader) => packed(reader.bytes(type.size)));
    case "array":
      return array(compile(type.items, names, space));
    case "map":
      return map(compile(type.values, names, space));
    default:
      return compile(type.type, names, space);
  }
}

function qualified(name, space) {
  return name.includes(".") || !space ? name : `${space}.${name}`;
}

function named(type, names, space, read) {
  names.set(qualified(type.name, type.namespace ?? space), read);
  return read;
}

function record(type, names, space) {
  const inner = type.namespace ?? (type.name.includes(".") ? type.name.replace(/\.[^.]*$/, "") : space);
  const fields = [];
  const read = (reader) => reader.nested(() => Object.fromEntries(fields.map(([name, one]) => [name, one(reader)])));
  named(type, names, space, read);
  for (const field of type.fields) fields.push([field.name, compile(field.type, names, inner)]);
  return read;
}

function symbol(type, index) {
  if (!(index in type.symbols)) throw new Error(`${type.name} has no symbol ${index}`);
  return type.symbols[index];
}

function union(branches) {
  return (reader) => {
    const index = size(reader);
    if (!(index in branches)) throw new Error(`a union has no branch ${index}`);
    return reader.nested(() => branches[index](reader));
  };
}

function* items(reader) {
  for (let count = size(reader); count !== 0; count = size(reader)) {
    if (count < 0) {
      count = -count;
      long(reader); // The size of the block.
    }
    for (; count > 0; count -= 1) {
      reader.note();
      yield;
    }
  }
}

function array(read) {
  return (reader) =>
    reader.nested(() => {
      const found = [];
      for (const _ of items(reader)) found.push(read(reader));
      return found;
    });
}

function map(read) {
  return (reader) =>
    reader.nested(() => {
      const found = [];
      for (const _ of items(reader)) found.push([reader.text(size(reader)), read(reader)]);
      return Object.fromEntries(found);
    });
}

/** Readers of logical types that people would not recognize in their stored form. */
const LOGICAL = {
  decimal: (type) => {
    const read = type.type === "fixed" ? (reader) => reader.bytes(type.size) : (reader) => reader.bytes(size(reader));
    return (reader) => decimal(read(reader), type.scale ?? 0);
  },
  date: () => (reader) => time(long(reader) * 86_400_000n, 10),
  "timestamp-millis": () => (reader) => time(long(reader)),
  "timestamp-micros": () => (reader) => time(long(reader) / 1000n),
};

function time(milliseconds, length = 24) {
  const date = new Date(Number(milliseconds));
  return Number.isNaN(date.getTime()) ? whole(milliseconds) : date.toISOString().slice(0, length);
}

function decimal(data, scale) {
  let found = 0n;
  for (const one of data) found = (found << 8n) | BigInt(one);
  if (data[0] >= 0x80) found -= 1n << BigInt(8 * data.length);
  const digits = String(found < 0n ? -found : found).padStart(scale + 1, "0");
  const point = digits.length - scale;
  const text = scale > 0 ? `${digits.slice(0, point)}.${digits.slice(point)}` : digits;
  return found < 0n ? `-${text}` : text;
}
