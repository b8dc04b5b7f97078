"""Decoders: straight-line code that reads one version of one message.

The code is written from the layout and compiled when it is first needed. Nested structs are
laid out in line, numbers that follow each other are unpacked at one go, together with the size
or count after them. It looks like this:

    def decode(data, is_exact):
     end = len(data)
     items_left = 262144
     position = 0
     try:
      acks, timeout_ms, size = unpack_1(data, position)
      position += 7
      ...
     except (IndexError, StructError):
      raise truncated_message('ProduceRequest v9', position, end) from None
     ...

Reading past the end raises by itself, except for slices, before which sizes are checked.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from millstream.protocols.kafka.codec import malformed
from millstream.protocols.kafka.codec.declaration import mutable_twin
from millstream.protocols.kafka.codec.layout import LayoutField, layout_of, size_min
from millstream.protocols.kafka.codec.primitives import (
    Array,
    Blob,
    Fixed,
    RecordData,
    Text,
    Uuid,
    WireType,
    read_uvarint,
)
from millstream.protocols.kafka.codec.source_builder import SourceBuilder

Decoder = Callable[[memoryview, bool], Any]


def build_decoder(kind: type, version: int, *, is_flexible: bool) -> Decoder:
    """Write and compile the decoder of one version of `kind`."""
    return _Decoder(kind, version, is_flexible=is_flexible).build()


class _Decoder:
    def __init__(self, kind: type, version: int, *, is_flexible: bool) -> None:
        self._kind = kind
        self._version = version
        self._is_flexible = is_flexible
        self._source = SourceBuilder()
        # Numbers that are still to be unpacked, and the statements that follow then.
        self._run: list[tuple[str, str]] = []
        self._after_run: list[str] = []

    def build(self) -> Decoder:
        source = self._source
        name = repr(f"{self._kind.__name__} v{self._version}")
        with source.block("def decode(data, is_exact):"):
            source.add(
                "end = len(data)", f"items_left = {malformed.ITEM_COUNT_MAX}", "position = 0"
            )
            with source.block("try:"):
                self._struct(self._kind, "value", self._kind.__name__)
            with source.block("except (IndexError, StructError):"):
                source.add(f"raise truncated_message({name}, position, end) from None")
            with source.block("except UnicodeDecodeError as error:"):
                source.add(f"raise invalid_utf8({name}, position, error) from None")
            with source.block("if position != end and is_exact:"):
                source.add(f"raise trailing_bytes({name}, position, end)")
            source.add("return value")
        return source.compile("decode", f"{self._kind.__name__}-{self._version}-decode", _NAMES)

    def _struct(self, kind: type, target: str, path: str) -> None:
        """Read the fields of a struct, then build it."""
        layout = layout_of(kind, self._version)
        values = {part.name: self._source.fresh(part.name) for part in layout.plain}
        for part in layout.plain:
            field = f"{path}.{part.name}"
            self._value(part.kind, values[part.name], field, is_nullable=part.is_nullable)
        if self._is_flexible:
            values |= self._tags(layout.tagged, path)
        self._flush()
        for part in layout.absent:
            values[part.name] = self._source.constant("default", part.default)
        self._source.add(f"{target} = {self._source.constant('Twin', mutable_twin(kind))}()")
        self._source.add(*(f"{target}.{name} = {value}" for name, value in values.items()))
        self._source.add(f"{target}.__class__ = {self._source.constant('Kind', kind)}")

    def _value(self, kind: WireType, target: str, path: str, *, is_nullable: bool) -> None:
        match kind:
            case Fixed(code=code):
                self._run.append((code, target))
            case Uuid():
                self._run.append(("16s", target))
                self._after_run.append(f"{target} = uuid_of({target})")
            case Text() | Blob() | RecordData() | Array():
                self._sized(kind, target, path, is_nullable=is_nullable)
            case _ if is_nullable:
                self._nullable_struct(kind, target, path)
            case _:
                self._struct(kind, target, path)

    def _sized(self, kind: WireType, target: str, path: str, *, is_nullable: bool) -> None:
        """Read a value that follows its size or count."""
        source = self._source
        length = self._length("h" if isinstance(kind, Text) else "i")
        if not is_nullable:
            self._content(kind, length, target, path)
            return
        with source.block(f"if {length} == -1:"):
            source.add(f"{target} = None")
        with source.block("else:"):
            self._content(kind, length, target, path)

    def _content(self, kind: WireType, length: str, target: str, path: str) -> None:
        match kind:
            case Array(item=item):
                self._items(item, length, target, path)
            case Text():
                self._slice("data[position:stop].tobytes().decode()", length, target, path)
            case Blob():
                self._slice("data[position:stop].tobytes()", length, target, path)
            case _:
                self._slice("data[position:stop]", length, target, path)

    def _slice(self, expression: str, size: str, target: str, path: str) -> None:
        source = self._source
        source.add(f"stop = position + {size}")
        with source.block("if not position <= stop <= end:"):
            source.add(f"raise bad_size({path!r}, {size}, end - position)")
        source.add(f"{target} = {expression}", "position = stop")

    def _items(self, item: WireType, count: str, target: str, path: str) -> None:
        source = self._source
        size = size_min(item, self._version, is_flexible=self._is_flexible)
        if size == 0:
            raise TypeError(f"items of {path} take no bytes, so no count of them can be bounded")
        self._check_count(count, size, path)
        if isinstance(item, Fixed):
            source.add(
                f"{target} = unpack_many({count}, {item.code!r}).unpack_from(data, position)",
                f"position += {count} * {item.size}",
            )
            return
        items, value = source.fresh("items"), source.fresh("item")
        source.add(f"{items} = []")
        with source.block(f"for _ in range({count}):"):
            self._value(item, value, path, is_nullable=False)
            self._flush()
            source.add(f"{items}.append({value})")
        source.add(f"{target} = tuple({items})")

    def _check_count(self, count: str, item_size_min: int, path: str) -> None:
        self._source.add(f"items_left -= {count}")
        check = f"0 <= {count} * {item_size_min} <= end - position and items_left >= 0"
        with self._source.block(f"if not ({check}):"):
            self._source.add(f"raise bad_count({path!r}, {count}, {item_size_min}, end - position)")

    def _nullable_struct(self, kind: type, target: str, path: str) -> None:
        source = self._source
        mark = source.fresh("mark")
        self._run.append(("b", mark))
        self._flush()
        with source.block(f"if {mark} == 1:"):
            self._struct(kind, target, path)
        with source.block(f"elif {mark} == -1:"):
            source.add(f"{target} = None")
        with source.block("else:"):
            source.add(f"raise bad_presence({path!r}, {mark})")

    def _tags(self, tagged: tuple[LayoutField, ...], path: str) -> dict[str, str]:
        """Read the tagged fields; return the variables of the known ones."""
        source = self._source
        count = source.fresh("tags")
        self._run.append(("B", count))
        self._flush()
        if not tagged:
            with source.block(f"if {count}:"):
                source.add("position, items_left = skip_tags(data, position - 1, items_left)")
            return {}
        values = {part.name: source.fresh(part.name) for part in tagged}
        for part in tagged:
            default = source.constant("default", part.default)
            source.add(f"{values[part.name]} = {default}")
        with source.block(f"if {count}:"):
            source.add(f"{count}, position = read_uvarint(data, position - 1)")
            self._check_count(count, 2, f"{path} tags")
            with source.block(f"for _ in range({count}):"):
                self._tag(tagged, values, path)
        return values

    def _tag(self, tagged: tuple[LayoutField, ...], values: dict[str, str], path: str) -> None:
        """Read one tagged field. If a tag is repeated, the last value counts."""
        source = self._source
        tag, size, start = source.fresh("tag"), source.fresh("size"), source.fresh("start")
        source.add(
            f"{tag}, position = read_uvarint(data, position)",
            f"{size}, position = read_uvarint(data, position)",
            f"{start} = position",
        )
        with source.block(f"if {size} > end - position:"):
            source.add(f"raise bad_size({path + ' tag'!r}, {size}, end - position)")
        for part in tagged:
            with source.block(f"if {tag} == {part.tag}:"):
                field = f"{path}.{part.name}"
                self._value(part.kind, values[part.name], field, is_nullable=part.is_nullable)
                self._flush()
                with source.block(f"if position != {start} + {size}:"):
                    source.add(f"raise bad_tag({field!r}, {size}, position - {start})")
        source.add(f"position = {start} + {size}")

    def _length(self, code: str) -> str:
        """Read a size or count; -1 stands for null."""
        length = self._source.fresh("size")
        if not self._is_flexible:
            self._run.append((code, length))
            self._flush()
            return length
        self._run.append(("B", length))
        self._flush()
        read = "read_text_size" if code == "h" else "read_uvarint"
        with self._source.block(f"if {length} > 127:"):
            self._source.add(f"{length}, position = {read}(data, position - 1)")
        self._source.add(f"{length} -= 1")
        return length

    def _flush(self) -> None:
        """Unpack the numbers that were deferred."""
        source = self._source
        if not self._run:
            return
        codes = "".join(code for code, _ in self._run)
        if codes == "B":
            source.add(f"{self._run[0][1]} = data[position]", "position += 1")
        else:
            packer = struct.Struct(f">{codes}")
            unpack = source.constant("unpack", packer.unpack_from)
            targets = "".join(f"{target}, " for _, target in self._run)
            source.add(f"{targets}= {unpack}(data, position)", f"position += {packer.size}")
        source.add(*self._after_run)
        self._run.clear()
        self._after_run.clear()


@lru_cache(maxsize=4096)
def _uuid_of(data: bytes) -> uuid.UUID:
    # The same topics come with every request, and making a UUID takes a microsecond.
    return uuid.UUID(bytes=data)


@lru_cache(maxsize=1024)
def _unpack_many(count: int, code: str) -> struct.Struct:
    return struct.Struct(f">{count}{code}")


_NAMES = {
    "StructError": struct.error,
    "uuid_of": _uuid_of,
    "unpack_many": _unpack_many,
    "read_uvarint": read_uvarint,
    "read_text_size": malformed.read_text_size,
    "skip_tags": malformed.skip_tags,
    "truncated_message": malformed.truncated_message,
    "trailing_bytes": malformed.trailing_bytes,
    "invalid_utf8": malformed.invalid_utf8,
    "bad_size": malformed.bad_size,
    "bad_count": malformed.bad_count,
    "bad_presence": malformed.bad_presence,
    "bad_tag": malformed.bad_tag,
}
