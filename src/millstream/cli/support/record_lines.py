r"""Records as lines, read by `topic append` and printed by `topic tail`.

JSON has one object per line in the shape of the HTTP API, with one more field:

    {"partition":0,"offset":7,"timestamp":1763240000000,"key":"k1","value":{"n":1},"headers":{}}
    {"partition":0,"offset":8,"timestamp":1763240000000,"key":null,"text":"no JSON","headers":{}}
    {"partition":0,"offset":9,"timestamp":1763240000000,"key":null,"value":{"base64":"/w=="},...}

`text` replaces `value` for a value that is text but not JSON. A JSON value is printed as it was
written, so that `append --format json` accepts what `tail --json` prints, byte for byte, except
that invisible characters, which a terminal might interpret, are escaped.
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
from millstream.protocols.http.mismatch import describe_mismatch, describe_syntax
from millstream.protocols.http.values import Base64, Text, base64_bytes, value_bytes


class RecordLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A record as one line of JSON. Fields that only say where it was stored are ignored."""

    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    key: Text | None = None
    headers: dict[str, Text | list[Text | None] | None] = {}
    timestamp: int | None = None
    partition: msgspec.Raw = msgspec.Raw()
    topic: msgspec.Raw = msgspec.Raw()
    offset: msgspec.Raw = msgspec.Raw()
    node: msgspec.Raw = msgspec.Raw()


_TOO_DEEP = "it is nested too deeply"

_decode = msgspec.json.Decoder(RecordLine).decode


def read_line(line: bytes) -> NewRecord:
    """Return the record of a JSON line; raises `InvalidRecord`."""
    try:
        fields = _decode(line)
        return NewRecord(
            _value_of(fields),
            _plain(fields.key),
            {name: _header(value) for name, value in fields.headers.items()},
            timestamp_ms=fields.timestamp,
        )
    except msgspec.ValidationError:
        raise InvalidRecord(_mismatch(line)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRecord(f"it is not JSON in UTF-8: {describe_syntax(error)}") from None
    except RecursionError:
        raise InvalidRecord(_TOO_DEEP) from None
    except MalformedRequest as error:
        raise InvalidRecord(str(error)) from None


def _mismatch(line: bytes) -> str:
    """Return why a line, which is JSON, is no record."""
    try:
        return f"it {describe_mismatch(msgspec.json.decode(line), RecordLine)}"
    except RecursionError:
        return _TOO_DEEP


def _value_of(fields: RecordLine) -> bytes | None:
    if isinstance(fields.text, str):
        if not isinstance(fields.value, msgspec.UnsetType):
            raise InvalidRecord("it has both `value` and `text`; only one is allowed")
        return fields.text.encode()
    if isinstance(fields.value, msgspec.UnsetType):
        raise InvalidRecord("it has neither `value` nor `text`")
    return value_bytes(fields.value)


def _plain(text: Text | None) -> Key:
    return base64_bytes(text) if isinstance(text, Base64) else text


def _header(value: Text | list[Text | None] | None) -> HeaderItem | list[HeaderItem]:
    return [_plain(item) for item in value] if isinstance(value, list) else _plain(value)


def json_line(record: TopicRecord) -> str:
    """Return a record as one line of JSON, with control characters escaped."""
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
    """Return the name of the value field and its JSON."""
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
    """Return JSON without invisible characters: spaces between tokens, escapes inside strings."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else " "
        if character in "\t\r\n"
        else json.dumps(character)[1:-1]
        for character in text
    )


def _as_json(data: Key) -> Any:
    return {"base64": base64.b64encode(data).decode()} if isinstance(data, bytes) else data


def _headers_json(headers: Headers) -> dict[str, Any]:
    return {
        name: [_as_json(item) for item in value] if isinstance(value, list) else _as_json(value)
        for name, value in headers.items()
    }


def text_line(record: TopicRecord) -> str:
    """Return a record as a line for people: position, time, key, value."""
    place = f"{record.partition}:{record.offset}"
    key = "-" if record.key is None else shown(record.key)
    value = "(no value)" if record.raw is None else shown(record.raw)
    return f"{place}  {time_text(record.timestamp_ms)}  {key}  {value}"


def shown(data: str | bytes) -> str:
    r"""Return bytes for display: text with control characters escaped, other bytes as `\xff`."""
    return printable(data if isinstance(data, str) else data.decode(errors="backslashreplace"))
