"""PLAIN (RFC 4616): a user and a password in clear text, for connections by TLS."""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.access.principal import NAME_SIZE_MAX
from millstream.broker.access.sasl.failure import LoginFailed

PASSWORD_SIZE_MAX = 1_024
MESSAGE_SIZE_MAX = 8_192


class PlainLogin(NamedTuple):
    """What a client says it is, and the password that is to prove it."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"PlainLogin(user={self.user!r})"


def read_plain(data: bytes) -> PlainLogin:
    """Parse the message of a client; raise `LoginFailed` if it is malformed."""
    if len(data) > MESSAGE_SIZE_MAX:
        raise LoginFailed(f"a message has more than {MESSAGE_SIZE_MAX} bytes")
    try:
        parts = data.decode().split("\0")
    except UnicodeDecodeError:
        raise LoginFailed("a message is not UTF-8") from None
    if len(parts) != 3:
        raise LoginFailed("the message does not have three parts")
    authorized, user, password = parts
    if not 1 <= len(user) <= NAME_SIZE_MAX:
        raise LoginFailed("the message has no valid user")
    if authorized not in ("", user):
        raise LoginFailed("a user cannot act for another one", user=user)
    if not 1 <= len(password) <= PASSWORD_SIZE_MAX:
        raise LoginFailed("the message has no valid password", user=user)
    return PlainLogin(user, password)
