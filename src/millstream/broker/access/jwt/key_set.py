"""Public keys of an issuer (JWKS, RFC 7517). Pure.

Keys are kept with the algorithms that they may be used with: the algorithm that a JWT names is
accepted only if its key is one for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from millstream.config.schema import JwtAlgorithm
from millstream.errors import InvalidConfig

KEYS_MAX = 100
KEY_ID_LENGTH_MAX = 500

RSA_BITS_MIN = 2_048
RSA_BITS_MAX = 16_384
"""A signature of a larger key takes long to check."""

_RSA = frozenset(
    {
        JwtAlgorithm.RS256,
        JwtAlgorithm.RS384,
        JwtAlgorithm.RS512,
        JwtAlgorithm.PS256,
        JwtAlgorithm.PS384,
        JwtAlgorithm.PS512,
    }
)
_CURVES: Mapping[str, JwtAlgorithm] = {"P-256": JwtAlgorithm.ES256, "P-384": JwtAlgorithm.ES384}


class SigningKey(NamedTuple):
    """A public key of the issuer."""

    id: str | None
    key: Any
    algorithms: frozenset[JwtAlgorithm]


class KeySet(NamedTuple):
    """All usable keys of an issuer."""

    keys: tuple[SigningKey, ...] = ()

    def fitting(self, key_id: str | None, algorithm: JwtAlgorithm) -> Sequence[SigningKey]:
        """Return the keys by which a JWT may be signed. One without a key id may be by any."""
        return [
            key
            for key in self.keys
            if algorithm in key.algorithms and (key_id is None or key.id == key_id)
        ]


def read_key_set(data: bytes) -> KeySet:
    """Parse a key set; raise `InvalidConfig` if it has no usable key.

    Keys of other types, for encryption, that are too short, or that are private are left out.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidConfig("the key set is not JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise InvalidConfig(f"the key set must have a list of at most {KEYS_MAX} keys")
    keys = tuple(key for entry in entries if (key := _read_key(entry)) is not None)
    if not keys:
        raise InvalidConfig(
            f"none of the {len(entries)} keys of the key set can be used: a key must be public, of"
            f" RSA with at least {RSA_BITS_MIN} bits or of the curves {', '.join(_CURVES)}"
        )
    return KeySet(keys)


def _read_key(entry: Any) -> SigningKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    if "verify" not in entry.get("key_ops", ["verify"]):
        return None
    key_id = entry.get("kid")
    if not (key_id is None or (isinstance(key_id, str) and len(key_id) <= KEY_ID_LENGTH_MAX)):
        return None
    algorithms = _algorithms_of(entry)
    key = _public_key(entry) if algorithms else None
    return None if key is None else SigningKey(key_id, key, algorithms)


def _algorithms_of(entry: dict[str, Any]) -> frozenset[JwtAlgorithm]:
    """Return what a key may be used with: one algorithm if it says so, or all of its type."""
    match entry.get("kty"), entry.get("crv"):
        case "RSA", None:
            possible = _RSA
        case "EC", str(curve) if curve in _CURVES:
            possible = frozenset({_CURVES[curve]})
        case _:
            return frozenset()
    named = entry.get("alg")
    if named is None:
        return possible
    return frozenset(algorithm for algorithm in possible if algorithm.value == named)


def _public_key(entry: dict[str, Any]) -> Any:
    from jwt import InvalidKeyError  # noqa: PLC0415 - only those who need it have it.
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm  # noqa: PLC0415

    try:
        if entry["kty"] == "EC":
            return ECAlgorithm.from_jwk(entry)
        key = RSAAlgorithm.from_jwk(entry)
    except (InvalidKeyError, ValueError, TypeError, KeyError):
        return None
    return key if RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX else None
