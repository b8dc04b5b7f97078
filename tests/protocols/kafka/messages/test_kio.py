"""Against kio, a codec by other people, generated from Kafka's own definitions."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.codec.layout import layout_of
from millstream.protocols.kafka.codec.message import decode, encode
from millstream.protocols.kafka.codec.primitives import NO_ID
from millstream.protocols.kafka.error_codes import ErrorCode
from tests.protocols.kafka.samples import CASES, sample

LACKING = {
    ("PublishTransactionsRequest", 0),
    ("PublishTransactionsResponse", 0),
    ("RenewTransactionsRequest", 0),
    ("RenewTransactionsResponse", 0),
}
"""Messages and versions that kio does not have: those of Millstream alone. It knows all others."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)
_KEYS = {kind: api.key for api in APIS.values() for kind in (api.request, api.response)}


def kio_class(kind, version):
    side = "request" if kind.__name__.endswith("Request") else "response"
    module = importlib.import_module(f"kio.schema.{api_key_map[_KEYS[kind]]}.v{version}.{side}")
    return getattr(module, kind.__name__)


def has_kio(kind, version):
    try:
        kio_class(kind, version)
    except (ImportError, KeyError):
        return False
    return True


def plain_of_kio(value):
    """What a kio value says, in numbers, strings, tuples and dictionaries."""
    match value:
        case datetime.timedelta():
            return value // _MILLISECOND
        case datetime.datetime():
            return (value - _EPOCH) // _MILLISECOND
        case tuple():
            return tuple(map(plain_of_kio, value))
    if not dataclasses.is_dataclass(value):
        return value
    names = (field.name for field in dataclasses.fields(value))
    return {name: plain_of_kio(getattr(value, name)) for name in names}


def plain(value, version):
    """What a value of ours says in `version`, in the terms of `plain_of_kio`."""
    if value == NO_ID:
        return None  # kio has no id of zeros.
    if isinstance(value, tuple):
        return tuple(plain(item, version) for item in value)
    if not dataclasses.is_dataclass(value):
        return value
    layout = layout_of(type(value), version)
    names = (part.name for part in layout.plain + layout.tagged)
    # kio has spans and points of time, and leaves the unit out of their names.
    return {name.removesuffix("_ms"): plain(getattr(value, name), version) for name in names}


def test_kio_lacks_exactly_what_is_listed():
    found = {(kind.__name__, version) for kind, version in CASES if not has_kio(kind, version)}
    assert found == LACKING


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        pytest.param(kind, version, id=f"{kind.__name__}-{version}")
        for kind, version in CASES
        if (kind.__name__, version) not in LACKING
    ],
)
def test_kio_reads_what_we_write_and_we_read_what_kio_writes(kind, version):
    theirs = kio_class(kind, version)
    for seed in range(4):
        value = sample(kind, version, seed)
        data = encode(value, version)

        read, size = entity_reader(theirs)(data, 0)
        assert size == len(data)
        assert plain_of_kio(read) == plain(value, version)

        written = io.BytesIO()
        entity_writer(theirs)(written, read)
        assert decode(kind, written.getvalue(), version) == value


def test_error_codes_are_kios():
    assert {code.name.lower(): code.value for code in ErrorCode} == {
        code.name: code.value for code in KioErrorCode
    }
