"""The secret from which salts of users that do not exist are derived, the same on all nodes."""

from __future__ import annotations

from collections.abc import Callable

from millstream.broker.access.rows import decode_secret, encode_secret
from millstream.metadata.interface import ABSENT, Compare, Metadata

SECRET_KEY = "login-secret"  # noqa: S105 - the name of a key.
SECRET_BYTES = 32


async def load_login_secret(metadata: Metadata, draw: Callable[[int], bytes]) -> bytes:
    """Return the secret of a cluster; the first node to ask draws it."""
    while True:
        entry = await metadata.get(SECRET_KEY)
        if entry is not None:
            return decode_secret(SECRET_KEY, entry.value)
        row = encode_secret(draw(SECRET_BYTES))
        # Another node may be faster; then the next round finds its secret.
        await metadata.transact(compares=[Compare(SECRET_KEY, ABSENT)], puts={SECRET_KEY: row})
