r"""OAUTHBEARER (RFC 7628): a token in one message, for connections by TLS. Pure.

    n,[a=<user>],\x01auth=Bearer <token>\x01[<key>=<value>\x01 ...]\x01

A login that fails is answered with the error of the Kafka protocol at once. RFC 7628 has the server
send the reason first, and wait for one more message; nobody but an attacker would learn from it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.broker.access.sasl.failure import LoginFailed

MESSAGE_SIZE_MAX = 64 * 1024

_HEADER = re.compile(r"n,(?:a=((?:[^,=\x00\x01]|=2C|=3D)+))?,")
_PAIR = re.compile(r"([A-Za-z]+)=([^\x01\x00]*)")
_BEARER = re.compile(r"[Bb]earer +([A-Za-z0-9._~+/=-]+)")


class BearerLogin(NamedTuple):
    """The token of a client, and the user that it wants to be, if it says so."""

    token: str
    user: str | None

    def __repr__(self) -> str:
        return f"BearerLogin(user={self.user!r})"


def read_bearer(data: bytes) -> BearerLogin:
    """Parse the message of a client; raise `LoginFailed` if it is malformed."""
    if len(data) > MESSAGE_SIZE_MAX:
        raise LoginFailed(f"a message has more than {MESSAGE_SIZE_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise LoginFailed("a message is not UTF-8") from None
    header, separator, rest = text.partition("\x01")
    found = _HEADER.fullmatch(header)
    if found is None or not separator or not rest.endswith("\x01\x01"):
        raise LoginFailed("the message is not one of OAUTHBEARER")
    pairs = [_PAIR.fullmatch(pair) for pair in rest[:-2].split("\x01")]
    if None in pairs:
        raise LoginFailed("the message has malformed pairs")
    tokens = [pair[2] for pair in pairs if pair is not None and pair[1].lower() == "auth"]
    bearer = _BEARER.fullmatch(tokens[0]) if len(tokens) == 1 else None
    if bearer is None:
        raise LoginFailed("the message has not one bearer token")
    user = found[1]
    if user is not None:
        user = user.replace("=2C", ",").replace("=3D", "=")
    return BearerLogin(bearer[1], user)
