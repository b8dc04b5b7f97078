"""Encoders: straight-line code that writes one version of one message.

The counterpart of `decoder`, made in the same way. Adjacent numbers are packed in one call; the
pieces are joined once at the end, or at each field of records, whose buffers are not copied:

    def encode(value):
     parts = []
     out = []
     add = out.append
     add(pack_1(value.throttle_time_ms, value.error_code))
     ...
     if out:
      parts.append(b"".join(out))
     return parts
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from millstream.protocols.kafka.codec.layout import LayoutField, layout_of
from millstream.protocols.kafka.codec.primitives import (
    TEXT_SIZE_MAX,
    UVARINTS,
    Array,
    Blob,
    Buffer,
    Fixed,
    RecordData,
    Records,
    Text,
    Uuid,
    WireType,
    encode_uvarint,
)
from millstream.protocols.kafka.codec.source_builder import SourceBuilder

Encoder = Callable[[Any], list[Buffer]]


def build_encoder(kind: type, version: int, *, is_flexible: bool) -> Encoder:
    """Write and compile the encoder of one version of `kind`."""
    return _Encoder(kind, version, is_flexible=is_flexible).build()


class _Encoder:
    def __init__(self, kind: type, version: int, *, is_flexible: bool) -> None:
        self._kind = kind
        self._version = version
        self._is_flexible = is_flexible
        self._source = SourceBuilder()
        # Numbers that are still to be packed; a pad byte has no expression.
        self._run: list[tuple[str, str]] = []
        # The list that pieces go to; a tagged field has its own, since its size comes first.
        self._out = "out"

    def build(self) -> Encoder:
        source = self._source
        name = repr(f"{self._kind.__name__} v{self._version}")
        with source.block("def encode(value):"):
            source.add("parts = []", "out = []", "add = out.append")
            with source.block("try:"):
                self._struct(self._kind, "value")
                self._flush()
                with source.block("if out:"):
                    source.add("parts.append(b''.join(out))")
            with source.block("except (StructError, AttributeError, TypeError) as error:"):
                source.add(
                    f"raise ValueError({name} + f' cannot be written: {{error}}') from error"
                )
            source.add("return parts")
        encoder: Encoder = source.compile(
            "encode", f"{self._kind.__name__}-{self._version}-encode", _NAMES
        )
        return encoder

    def _struct(self, kind: type, value: str) -> None:
        layout = layout_of(kind, self._version)
        for part in layout.plain:
            self._value(part.kind, f"{value}.{part.name}", is_nullable=part.is_nullable)
        if not self._is_flexible:
            return
        if layout.tagged:
            self._tags(layout.tagged, value)
        else:
            self._run.append(("x", ""))

    def _value(self, kind: WireType, value: str, *, is_nullable: bool) -> None:
        """Write the value of the expression `value`."""
        match kind:
            case Fixed(code=code):
                self._run.append((code, value))
            case Uuid():
                self._run.append(("16s", f"{value}.bytes"))
            case _ if is_nullable:
                self._nullable(kind, value)
            case Text():
                self._sized("h", f"{value}.encode()")
            case Blob():
                self._sized("i", value)
            case RecordData():
                self._records(value)
            case Array(item=item):
                self._array(item, value)
            case _:
                self._struct(kind, value)

    def _nullable(self, kind: WireType, value: str) -> None:
        source = self._source
        self._flush()
        name = source.fresh("value")
        source.add(f"{name} = {value}")
        with source.block(f"if {name} is None:"):
            source.add(f"add({self._null(kind)!r})")
        with source.block("else:"):
            if isinstance(kind, type):
                self._run.append(("b", "1"))
            self._value(kind, name, is_nullable=False)
            self._flush()

    def _null(self, kind: WireType) -> bytes:
        if isinstance(kind, type):
            return b"\xff"
        if self._is_flexible:
            return b"\x00"
        return b"\xff\xff" if isinstance(kind, Text) else b"\xff\xff\xff\xff"

    def _sized(self, code: str, value: str) -> None:
        source = self._source
        name = source.fresh("value")
        source.add(f"{name} = {value}")
        self._length(code, name)
        self._flush()
        source.add(f"add({name})")

    def _length(self, code: str, name: str) -> None:
        """Write the size or count of the variable `name`."""
        if not self._is_flexible:
            self._run.append((code, f"len({name})"))
            return
        self._flush()
        size = self._source.fresh("size")
        long = "text_size" if code == "h" else "encode_uvarint"
        self._source.add(
            f"{size} = len({name}) + 1",
            f"add(UVARINTS[{size}] if {size} < {len(UVARINTS)} else {long}({size}))",
        )

    def _records(self, value: str) -> None:
        source = self._source
        buffers, size = source.fresh("buffers"), source.fresh("size")
        source.add(f"{buffers}, {size} = gather({value})")
        if self._is_flexible:
            self._flush()
            source.add(f"add(encode_uvarint({size} + 1))")
        else:
            self._run.append(("i", size))
            self._flush()
        if self._out != "out":
            raise TypeError("records cannot be tagged")
        with source.block(f"if {size}:"):
            source.add("parts.append(b''.join(out))", "out.clear()", f"parts += {buffers}")

    def _array(self, item: WireType, value: str) -> None:
        source = self._source
        items = source.fresh("items")
        source.add(f"{items} = {value}")
        self._length("i", items)
        self._flush()
        if isinstance(item, Fixed):
            source.add(f"add(pack_many(len({items}), {item.code!r}).pack(*{items}))")
            return
        name = source.fresh("item")
        with source.block(f"for {name} in {items}:"):
            self._value(item, name, is_nullable=False)
            self._flush()

    def _tags(self, tagged: tuple[LayoutField, ...], value: str) -> None:
        """Write the tagged fields that differ from their default."""
        source = self._source
        self._flush()
        tags, outer = source.fresh("tags"), self._out
        source.add(f"{tags} = []")
        for part in tagged:
            name = source.fresh(part.name)
            default = source.constant("default", part.default)
            source.add(f"{name} = {value}.{part.name}")
            # Comparing structs takes long, and nearly always it is the default itself.
            same = f"{name} is {default} or " if isinstance(part.kind, type) else ""
            with source.block(f"if not ({same}{name} == {default}):"):
                self._out = source.fresh("out")
                source.add(f"{self._out} = []", f"add = {self._out}.append")
                self._value(part.kind, name, is_nullable=part.is_nullable)
                self._flush()
                source.add(f"{tags}.append(tag({part.tag}, {self._out}))")
        self._out = outer
        source.add(f"add = {outer}.append", f"add(encode_uvarint(len({tags})))")
        source.add(f"{outer} += {tags}")

    def _flush(self) -> None:
        """Pack the numbers that were deferred."""
        if not self._run:
            return
        codes = "".join(code for code, _ in self._run)
        if codes == "x" * len(codes):
            self._source.add(f"add({bytes(len(codes))!r})")
        else:
            pack = self._source.constant("pack", struct.Struct(f">{codes}").pack)
            values = ", ".join(value for _, value in self._run if value)
            self._source.add(f"add({pack}({values}))")
        self._run.clear()


def _gather(records: Records) -> tuple[Sequence[Buffer], int]:
    """Return the buffers of records and their size."""
    if isinstance(records, bytes | bytearray | memoryview):
        return (records,), len(records)
    return records, sum(map(len, records))


def _text_size(size: int) -> bytes:
    if size > TEXT_SIZE_MAX + 1:
        raise ValueError(f"string has {size - 1} bytes, limit is {TEXT_SIZE_MAX}")
    return encode_uvarint(size)


def _tag(tag: int, pieces: list[bytes]) -> bytes:
    data = b"".join(pieces)
    return encode_uvarint(tag) + encode_uvarint(len(data)) + data


@lru_cache(maxsize=1024)
def _pack_many(count: int, code: str) -> struct.Struct:
    return struct.Struct(f">{count}{code}")


_NAMES = {
    "StructError": struct.error,
    "UVARINTS": UVARINTS,
    "encode_uvarint": encode_uvarint,
    "text_size": _text_size,
    "gather": _gather,
    "tag": _tag,
    "pack_many": _pack_many,
}
