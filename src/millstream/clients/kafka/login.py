"""Logins of the Kafka client: SCRAM and PLAIN, the client's side.

The password is read from a file, or from the environment, when a connection logs in. So it is not
part of options that others can see, and can be changed while the program runs.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import os
from collections.abc import Generator
from dataclasses import dataclass

from millstream.errors import InvalidConfig, NotAuthenticated

ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 10_000_000
"""A server could ask for more to keep the client busy."""

PASSWORD_SIZE_MAX = 1_024

PASSWORD_VARIABLE = "MILLSTREAM_PASSWORD"  # noqa: S105 - the name of a variable.


class LoginMechanism(enum.Enum):
    """Mechanisms by which the client can log in."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    PLAIN = "PLAIN"


_HASHES = {LoginMechanism.SCRAM_SHA_256: "sha256", LoginMechanism.SCRAM_SHA_512: "sha512"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaLogin:
    """How a client logs in."""

    user: str
    password_file: str | None = None
    """File with the password in its first line; `None` for the variable `MILLSTREAM_PASSWORD`."""
    mechanism: LoginMechanism = LoginMechanism.SCRAM_SHA_256

    def password(self) -> str:
        """Read the password."""
        if self.password_file is None:
            return _checked(os.environ.get(PASSWORD_VARIABLE, ""), PASSWORD_VARIABLE)
        try:
            with open(self.password_file, encoding="utf-8") as file:
                password = file.readline(PASSWORD_SIZE_MAX + 2).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            # A decoding error has the bytes of the password, so it is not chained either.
            reason = getattr(error, "strerror", None) or "it is not text"
            message = f"password file {self.password_file} cannot be read: {reason}"
            raise InvalidConfig(message) from None
        return _checked(password, self.password_file)


def _checked(password: str, place: str) -> str:
    """Return a password if it has a length that is allowed. The error does not repeat it."""
    if not 1 <= len(password) <= PASSWORD_SIZE_MAX:
        raise InvalidConfig(
            f"password in {place} must have 1 to {PASSWORD_SIZE_MAX} characters,"
            f" got {len(password)}"
        )
    return password


Exchange = Generator[bytes, bytes, None]
"""Yields the messages of the client, and is sent those of the server."""


def begin_login(login: KafkaLogin, nonce: bytes) -> Exchange:
    """Return the exchange of a login. It raises `NotAuthenticated` if the server is not genuine."""
    password = login.password()
    if login.mechanism is LoginMechanism.PLAIN:
        return _plain(login.user, password)
    return _scram(_HASHES[login.mechanism], login.user, password, nonce)


def _plain(user: str, password: str) -> Exchange:
    yield f"\0{user}\0{password}".encode()


def _scram(digest: str, user: str, password: str, nonce_bytes: bytes) -> Exchange:
    nonce = base64.b64encode(nonce_bytes).decode()
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = (yield f"n,,{first}".encode()).decode(errors="replace")
    both_nonces, salt, iterations = _read_challenge(challenge, nonce)
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    without_proof = f"c=biws,r={both_nonces}"
    signed = f"{first},{challenge},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    server_key = hmac.digest(salted, b"Server Key", digest)
    expected = b"v=" + base64.b64encode(hmac.digest(server_key, signed, digest))
    if not hmac.compare_digest(expected, answer):
        raise NotAuthenticated("the node does not know the password: it is not the one it seems")


def _read_challenge(text: str, nonce: str) -> tuple[str, bytes, int]:
    """Return nonce, salt and iterations of the first message of a server."""
    fields = text.split(",")
    names = [field[:2] for field in fields[:3]]
    try:
        if names != ["r=", "s=", "i="]:
            raise ValueError("it has no nonce, salt and iterations")
        both_nonces, salt, iterations = (field[2:] for field in fields[:3])
        if not both_nonces.startswith(nonce) or both_nonces == nonce:
            raise ValueError("its nonce does not continue that of the client")
        if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
            raise ValueError(
                f"iterations must be between {ITERATIONS_MIN} and {ITERATIONS_MAX},"
                f" got {iterations[:20]}"
            )
        return both_nonces, base64.b64decode(salt, validate=True), int(iterations)
    except (ValueError, binascii.Error) as error:
        raise NotAuthenticated(f"the node's message of SCRAM is wrong: {error}") from error
