"""Messages for tests: every message in every version, with values made up from a seed."""

from __future__ import annotations

import random
import string
import uuid

import pytest

from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.codec.layout import layout_of
from millstream.protocols.kafka.codec.primitives import Array, Blob, Fixed, RecordData, Text, Uuid
from millstream.protocols.kafka.error_codes import ErrorCode

CASES = [
    (kind, version)
    for api in APIS.values()
    for version in range(api.versions.first, api.versions.last + 1)
    for kind in (api.request, api.response)
]
every_message = pytest.mark.parametrize(
    ("kind", "version"), [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in CASES]
)

_RANGES = {
    "b": (-(2**7), 2**7 - 1),
    "h": (-(2**15), 2**15 - 1),
    "i": (-(2**31), 2**31 - 1),
    "q": (-(2**63), 2**63 - 1),
    "H": (0, 2**16 - 1),
    "I": (0, 2**32 - 1),
}
_LETTERS = string.ascii_letters + "äß€𝄞"
_ERROR_CODES = list(ErrorCode)


def sample(kind, version, seed):
    """Return a message whose fields in `version` have values drawn by `seed`.

    What the version lacks keeps its default, so the value survives encoding. Points and spans
    of time are such as a calendar has, for the sake of codecs that read them as such.
    """
    return _struct(kind, version, random.Random(f"{kind.__name__} {version} {seed}"))


def _struct(kind, version, rng):
    layout = layout_of(kind, version)
    values = {}
    for part in layout.plain + layout.tagged:
        if part.tag is not None and rng.random() < 0.4:
            continue
        is_null = part.is_nullable and rng.random() < 0.3
        values[part.name] = None if is_null else _value(part.kind, part.name, version, rng)
    for part in layout.absent:
        values[part.name] = part.default
    return kind(**values)


def _value(kind, name, version, rng):
    match kind:
        case Fixed(code="?"):
            return rng.random() < 0.5
        case Fixed(code="d"):
            return rng.uniform(-1e9, 1e9)
        case Fixed(code=code):
            return _number(code, name, rng)
        case Uuid():
            return uuid.UUID(int=rng.getrandbits(128)) if rng.random() < 0.9 else uuid.UUID(int=0)
        case Text():
            return "".join(rng.choices(_LETTERS, k=_size(rng)))
        case Blob():
            return rng.randbytes(_size(rng))
        case RecordData():
            return memoryview(rng.randbytes(rng.choice([0, 1, 126, 127, 128, 300])))
        case Array(item=item):
            return tuple(_value(item, name, version, rng) for _ in range(rng.choice([0, 1, 2, 3])))
    return _struct(kind, version, rng)


def _number(code, name, rng):
    if name.endswith("error_code"):
        return rng.choice(_ERROR_CODES)
    if name.endswith(("_ms", "timestamp")):
        return rng.randrange(2**31 if code == "i" else 2**42)
    low, high = _RANGES[code]
    return rng.choice([low, -1 if low else 1, 0, 1, high, rng.randint(low, high)])


def _size(rng):
    # 127 and 128 lie on both sides of a second byte in the size.
    return rng.choices([0, 1, 5, 20, 127, 128, 300], weights=[2, 4, 8, 4, 1, 1, 1])[0]
