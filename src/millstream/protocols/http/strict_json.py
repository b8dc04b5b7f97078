"""JSON as it is taken here: believed in nothing.

What is refused: what is not UTF-8 or not JSON, among it a byte order mark and the numbers that JSON
has no words for; a field twice; half a surrogate pair; numbers that no 64-bit float comes near;
nesting deeper than the interpreter goes. Text that passes means the same to every reader.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn, TypeVar

import msgspec

from millstream.errors import MalformedRequest
from millstream.protocols.http.mismatch import NAME_LENGTH_MAX, describe_mismatch

T = TypeVar("T")

_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_spaced = msgspec.json.format


def decode(data: bytes, kind: type[T]) -> T:
    """Return the message of type `kind` that `data` is; raises `MalformedRequest` otherwise."""
    found = check(data)
    if not isinstance(found, dict):
        raise MalformedRequest("body has to be a JSON object")
    try:
        message: T = _DECODERS[kind].decode(data)
    except msgspec.ValidationError as error:
        raise MalformedRequest(f"body {describe_mismatch(data, found, kind, error)}") from None
    except RecursionError:
        raise _too_deep() from None
    return message


def check(data: bytes) -> Any:
    """Return what `data` is as JSON; raises `MalformedRequest` where it is none."""
    try:
        found = _decode_any(data)
        # Objects come out of this with each field once. What is then the same text again, written
        # close or as Python writes it, had no field twice; else a closer look is needed, which
        # takes several times as long.
        again = _encode(found)
        if again != data and _spaced(again, indent=0) != data:
            _STRICT_DECODER.decode(data.decode())
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedRequest(f"body is not JSON in UTF-8: {_words(error)}") from None
    return found


def _words(error: Exception) -> str:
    return error.reason if isinstance(error, UnicodeDecodeError) else str(error)[:300]


def _too_deep() -> MalformedRequest:
    return MalformedRequest("body is nested too deeply")


class _Decoders(dict[type, msgspec.json.Decoder[Any]]):
    """A decoder for each type of message, made when it is first needed."""

    def __missing__(self, kind: type) -> msgspec.json.Decoder[Any]:
        made: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self[kind] = made
        return made


_DECODERS = _Decoders()


def _check_object(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise MalformedRequest(f"body has the field {twice[:NAME_LENGTH_MAX]!r} twice")


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedRequest(f"body has {name}, which JSON does not know")


_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_check_object, parse_constant=_refuse_constant)
