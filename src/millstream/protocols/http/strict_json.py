"""A strict JSON decoder for data from clients.

Refused are: data that is not UTF-8 or not JSON, including a byte order mark and the constants that
JSON does not have (NaN, Infinity); duplicate fields; half a surrogate pair; numbers outside the
range of a 64-bit float; nesting deeper than the interpreter allows. Data that passes has the same
meaning for every reader.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn, TypeVar

import msgspec

from millstream.errors import MalformedRequest
from millstream.protocols.http.integral_numbers import with_integers
from millstream.protocols.http.mismatch import (
    NAME_LENGTH_MAX,
    describe_mismatch,
    describe_syntax,
)

T = TypeVar("T")

_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_spaced = msgspec.json.format


def decode(data: bytes, kind: type[T]) -> T:
    """Return `data` as a message of type `kind`; raises `MalformedRequest` if it is not one."""
    decoded = check(data)
    if not isinstance(decoded, dict):
        raise MalformedRequest("body must be a JSON object")
    decoder = _DECODERS[kind]
    try:
        message: T = decoder.decode(data)
    except msgspec.ValidationError:
        try:
            message = decoder.decode(with_integers(data.strip(), kind))
        except msgspec.ValidationError:
            raise MalformedRequest(f"body {describe_mismatch(decoded, kind)}") from None
    except RecursionError:
        raise _too_deep() from None
    return message


def check(data: bytes) -> Any:
    """Return the decoded JSON; raises `MalformedRequest` if `data` is not strict JSON."""
    try:
        decoded = _decode_any(data)
        # The decoder keeps one of several equal fields. If encoding the result, compact or with
        # Python's spaces, gives the same text, there was no duplicate. If not, the strict decoder
        # has to decide, which takes several times as long.
        again = _encode(decoded)
        if again != data and _spaced(again, indent=0) != data:
            _STRICT_DECODER.decode(data.decode())
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedRequest(f"body is not JSON in UTF-8: {describe_syntax(error)}") from None
    return decoded


def _too_deep() -> MalformedRequest:
    return MalformedRequest("body is nested too deeply")


class _Decoders(dict[type, msgspec.json.Decoder[Any]]):
    """A decoder for each type of message, created when it is first needed."""

    def __missing__(self, kind: type) -> msgspec.json.Decoder[Any]:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self[kind] = decoder
        return decoder


_DECODERS = _Decoders()


def _check_object(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        duplicate = next(name for name, count in counts.items() if count > 1)
        raise MalformedRequest(f"body has the field {duplicate[:NAME_LENGTH_MAX]!r} twice")


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedRequest(f"body has {name}, which is not JSON")


_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_check_object, parse_constant=_refuse_constant)
