"""An issuer of JWTs: its keys, and JWTs of all kinds, good and bad."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER = "https://login.example"
AUDIENCE = "millstream"
NOW_S = 1_700_000_000


class Issuer:
    """Keys by id."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.entries: dict[str, dict[str, Any]] = {}

    def add_rsa(self, key_id: str, *, bits: int = 2048, **fields: Any) -> Issuer:
        key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        entry = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        return self._add(key_id, key, {**entry, **fields})

    def add_curve(self, key_id: str, curve: ec.EllipticCurve, **fields: Any) -> Issuer:
        key = ec.generate_private_key(curve)
        entry = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        return self._add(key_id, key, {**entry, **fields})

    def _add(self, key_id: str, key: Any, entry: dict[str, Any]) -> Issuer:
        self.keys[key_id] = key
        entry.pop("key_ops", None)
        self.entries[key_id] = {"kid": key_id, "use": "sig", **entry}
        return self

    def remove(self, key_id: str) -> None:
        del self.entries[key_id]

    @property
    def jwks(self) -> bytes:
        return json.dumps({"keys": list(self.entries.values())}).encode()

    def token(
        self,
        key_id: str,
        algorithm: str = "RS256",
        *,
        headers: dict[str, Any] | None = None,
        now_s: float = NOW_S,
        **claims: Any,
    ) -> str:
        """Return a JWT that is valid for ten minutes, with other claims as given; None removes."""
        values = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "alice",
            "iat": now_s,
            "exp": now_s + 600,
            **claims,
        }
        values = {name: value for name, value in values.items() if value is not None}
        return jwt.api_jws.encode(
            json.dumps(values).encode(),
            self.keys[key_id],
            algorithm,
            headers={
                name: value
                for name, value in {"kid": key_id, **(headers or {})}.items()
                if value is not None
            },
        )


def part(value: Any) -> str:
    """Return one part of a JWT that no library would make."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
