r"""Records as lines: how `topic append` reads them, and how `topic tail` prints them.

As JSON, one object a line, in the shape that the HTTP door has, with one word more:

    {"partition":0,"offset":7,"timestamp":1763240000000,"key":"k1","value":{"n":1},"headers":{}}
    {"partition":0,"offset":8,"timestamp":1763240000000,"key":null,"text":"no JSON","headers":{}}
    {"partition":0,"offset":9,"timestamp":1763240000000,"key":null,"value":{"base64":"/w=="},...}

`text` stands in the place of `value` for a value that is text and no JSON. A value that is JSON is
printed as it was written, so what `tail --json` prints is what `append --format json` takes, to the
byte; save that characters in it that cannot be seen, which a terminal might obey, are escaped.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec

from millstream.cli.support.output import printable, time_text, to_json
from millstream.clients.http.core.append.new_record import NewRecord
from millstream.clients.http.core.values import HeaderItem, Headers, Key, TopicRecord
from millstream.errors import InvalidRecord, MalformedRequest
from millstream.protocols.http.values import Base64, Text, base64_bytes, value_bytes


class RecordLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A record as one line of JSON has it. What only tells where it came from is not looked at."""

    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    key: Text | None = None
    headers: dict[str, Text | list[Text | None] | None] = {}
    timestamp: int | None = None
    partition: msgspec.Raw = msgspec.Raw()
    topic: msgspec.Raw = msgspec.Raw()
    offset: msgspec.Raw = msgspec.Raw()
    node: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(RecordLine).decode


def read_line(line: bytes) -> NewRecord:
    """Return the record that a line of JSON says; raises `InvalidRecord` where it says none."""
    try:
        found = _decode(line)
        return NewRecord(
            _value_of(found),
            _plain(found.key),
            {name: _header(value) for name, value in found.headers.items()},
            timestamp_ms=found.timestamp,
        )
    except (msgspec.DecodeError, UnicodeDecodeError, MalformedRequest, RecursionError) as error:
        raise InvalidRecord(str(error)) from None


def _value_of(found: RecordLine) -> bytes | None:
    if isinstance(found.text, str):
        if not isinstance(found.value, msgspec.UnsetType):
            raise InvalidRecord("it has a `value` and a `text`, allowed is one of them")
        return found.text.encode()
    if isinstance(found.value, msgspec.UnsetType):
        raise InvalidRecord("it has neither a `value` nor a `text`")
    return value_bytes(found.value)


def _plain(text: Text | None) -> Key:
    return base64_bytes(text) if isinstance(text, Base64) else text


def _header(value: Text | list[Text | None] | None) -> HeaderItem | list[HeaderItem]:
    return [_plain(one) for one in value] if isinstance(value, list) else _plain(value)


def json_line(record: TopicRecord) -> str:
    """Return a record as one line of JSON, with nothing that a terminal would obey."""
    head = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": _as_json(record.key),
    }
    name, value = _value_json(record)
    headers = to_json(_headers_json(record.headers))
    return f'{to_json(head)[:-1]}, "{name}": {value}, "headers": {headers}}}'


def _value_json(record: TopicRecord) -> tuple[str, str]:
    """Return the field that has the value, and its JSON."""
    if record.raw is None:
        return "value", "null"
    if record.is_json:
        text = record.raw.decode()
        is_packed = isinstance(record.value, dict) and record.value.keys() == {"base64"}
        if not is_packed:
            return "value", _escaped(text)
        return "text", to_json(text)
    try:
        return "text", to_json(record.raw.decode())
    except UnicodeDecodeError:
        return "value", to_json(_as_json(record.raw))


def _escaped(text: str) -> str:
    """Return JSON without what cannot be seen: between its parts that is space, else in a text."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else " " if one in "\t\r\n" else json.dumps(one)[1:-1]
        for one in text
    )


def _as_json(data: Key) -> Any:
    return {"base64": base64.b64encode(data).decode()} if isinstance(data, bytes) else data


def _headers_json(headers: Headers) -> dict[str, Any]:
    return {
        name: [_as_json(one) for one in value] if isinstance(value, list) else _as_json(value)
        for name, value in headers.items()
    }


def text_line(record: TopicRecord) -> str:
    """Return a record as a line for people: place, time, key, value."""
    place = f"{record.partition}:{record.offset}"
    key = "-" if record.key is None else shown(record.key)
    value = "(no value)" if record.raw is None else shown(record.raw)
    return f"{place}  {time_text(record.timestamp_ms)}  {key}  {value}"


def shown(data: str | bytes) -> str:
    r"""Return what is to be seen of bytes: text with controls escaped, other bytes as `\xff`."""
    return printable(data if isinstance(data, str) else data.decode(errors="backslashreplace"))
