// MessagePack values as JSON values.

import { BytesReader, float, packed, whole } from "./bytes_reader.js";

/** Decode one value, which must be all of the bytes. */
export function decodeMessagePack(data) {
  const reader = new BytesReader(data);
  const found = read(reader);
  if (!reader.isAtEnd) throw new Error("there are bytes after the value");
  return found;
}

function read(reader) {
  const first = reader.byte();
  if (first < 0x80) return first;
  if (first >= 0xe0) return first - 0x100;
  if (first < 0x90) return map(reader, first & 0x0f);
  if (first < 0xa0) return list(reader, first & 0x0f);
  if (first < 0xc0) return reader.text(first & 0x1f);
  const { view } = reader;
  const u8 = () => reader.byte();
  const u16 = () => view.getUint16(reader.step(2));
  const u32 = () => view.getUint32(reader.step(4));
  switch (first) {
    case 0xc0: return null;
    case 0xc2: return false;
    case 0xc3: return true;
    case 0xc4: return packed(reader.bytes(u8()));
    case 0xc5: return packed(reader.bytes(u16()));
    case 0xc6: return packed(reader.bytes(u32()));
    case 0xc7: return extension(reader, u8());
    case 0xc8: return extension(reader, u16());
    case 0xc9: return extension(reader, u32());
    case 0xca: return float(Math.fround(view.getFloat32(reader.step(4))));
    case 0xcb: return float(view.getFloat64(reader.step(8)));
    case 0xcc: return u8();
    case 0xcd: return u16();
    case 0xce: return u32();
    case 0xcf: return whole(view.getBigUint64(reader.step(8)));
    case 0xd0: return view.getInt8(reader.step(1));
    case 0xd1: return view.getInt16(reader.step(2));
    case 0xd2: return view.getInt32(reader.step(4));
    case 0xd3: return whole(view.getBigInt64(reader.step(8)));
    case 0xd4: return extension(reader, 1);
    case 0xd5: return extension(reader, 2);
    case 0xd6: return extension(reader, 4);
    case 0xd7: return extension(reader, 8);
    case 0xd8: return extension(reader, 16);
    case 0xd9: return reader.text(u8());
    case 0xda: return reader.text(u16());
    case 0xdb: return reader.text(u32());
    case 0xdc: return list(reader, u16());
    case 0xdd: return list(reader, u32());
    case 0xde: return map(reader, u16());
    case 0xdf: return map(reader, u32());
    default: throw new Error("0xc1 begins no value");
  }
}

function list(reader, count) {
  return reader.nested(() => {
    const found = [];
    for (let at = 0; at < count; at += 1) {
      reader.note();
      found.push(read(reader));
    }
    return found;
  });
}

function map(reader, count) {
  return reader.nested(() => {
    const found = [];
    for (let at = 0; at < count; at += 1) {
      reader.note();
      const key = read(reader);
      found.push([typeof key === "string" ? key : JSON.stringify(key), read(reader)]);
    }
    return Object.fromEntries(found);
  });
}

function extension(reader, size) {
  const type = reader.view.getInt8(reader.step(1));
  return { extension: type, ...packed(reader.bytes(size)) };
}
