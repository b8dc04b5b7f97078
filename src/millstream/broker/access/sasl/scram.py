"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the server's side, without I/O.

    client                                     server
    n,,n=alice,r=<nonce>                  ─►
                                          ◄─   r=<nonce><server nonce>,s=<salt>,i=<iterations>
    c=biws,r=<both nonces>,p=<proof>      ─►
                                          ◄─   v=<signature>

The client proves that it knows the password, and the server that it knows what follows from it.
Channel binding is not supported: the message of a client has to begin with `n,,`.

A user that does not exist gets a salt that is derived from its name and a secret, so that it is the
same each time, and cannot be told from a salt that was drawn. The exchange then goes on, does the
same work, and fails at its end, as with a wrong password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from millstream.broker.access.credentials import ScramCredential, ScramMechanism, ScramShape
from millstream.broker.access.principal import NAME_SIZE_MAX
from millstream.broker.access.sasl.failure import LoginFailed

ITERATIONS_MIN: Final = 4_096
"""The least that RFC 7677 allows."""

ITERATIONS_MAX: Final = 1_000_000
"""A login by PLAIN takes as many rounds of hashing at the node: a second, about."""

MESSAGE_SIZE_MAX: Final = 8_192
NONCE_LENGTH_MAX: Final = 1_024
NONCE_BYTES: Final = 24
SALT_BITS: Final = 130
SALT_SIZE_MAX: Final = 256

_GS2_HEADER = "n,,"
_CHANNEL_BINDING = "c=" + base64.b64encode(_GS2_HEADER.encode()).decode()
_NONCE = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+)")  # Printable ASCII without commas.
_USER = re.compile(r"n=((?:[^,=\x00]|=2C|=3D)+)")
_EXTENSION = re.compile(r"[A-Za-z]=[^,\x00]+")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

_HASHES: Mapping[ScramMechanism, Callable[..., Any]] = {
    ScramMechanism.SHA_256: hashlib.sha256,
    ScramMechanism.SHA_512: hashlib.sha512,
}
HASH_NAMES: Mapping[ScramMechanism, str] = {
    ScramMechanism.SHA_256: "sha256",
    ScramMechanism.SHA_512: "sha512",
}
HASH_SIZES: Mapping[ScramMechanism, int] = {ScramMechanism.SHA_256: 32, ScramMechanism.SHA_512: 64}


class ClientFirst(NamedTuple):
    """The first message of a client."""

    user: str
    nonce: str
    bare: str
    """The part that is signed."""


class ScramChallenge(NamedTuple):
    """An exchange that waits for the proof of the client."""

    mechanism: ScramMechanism
    user: str
    nonce: str
    """Of client and server."""
    credential: ScramCredential
    is_known: bool
    """Whether the credential is that of a user, and not a derived one."""
    signed: str
    """The first messages of both sides."""


def read_client_first(data: bytes) -> ClientFirst:
    """Parse the first message of a client; raise `LoginFailed` if it is malformed."""
    text = _text(data)
    if not text.startswith(_GS2_HEADER):
        raise LoginFailed("the message does not begin with n,,")
    bare = text.removeprefix(_GS2_HEADER)
    name, _, rest = bare.partition(",")
    nonce, _, extensions = rest.partition(",")
    found_name, found_nonce = _USER.fullmatch(name), _NONCE.fullmatch(nonce)
    if found_name is None or found_nonce is None or len(found_nonce[1]) > NONCE_LENGTH_MAX:
        raise LoginFailed("the first message has no valid user and nonce")
    _check_extensions(extensions)
    user = found_name[1].replace("=2C", ",").replace("=3D", "=")
    if len(user) > NAME_SIZE_MAX:
        raise LoginFailed("the name of the user is too long")
    return ClientFirst(user, found_nonce[1], bare)


def challenge(
    mechanism: ScramMechanism,
    first: ClientFirst,
    credential: ScramCredential | None,
    *,
    server_nonce: str,
    secret: bytes,
    iterations: int,
) -> tuple[bytes, ScramChallenge]:
    """Return the answer to the first message, and the exchange, which waits for the proof.

    `credential` is that of the user, if it has one; `iterations` is for users that have none.
    """
    # Derived for all users, so that it takes the same time for those that exist.
    derived = derived_credential(mechanism, first.user, secret=secret, iterations=iterations)
    used = credential or derived
    nonce = first.nonce + server_nonce
    salt = base64.b64encode(used.salt).decode()
    answer = f"r={nonce},s={salt},i={used.iterations}"
    signed = f"{first.bare},{answer}"
    known = credential is not None
    return answer.encode(), ScramChallenge(mechanism, first.user, nonce, used, known, signed)


def finish(exchange: ScramChallenge, data: bytes) -> bytes:
    """Return the answer to the proof of a client; raise `LoginFailed` if it proves nothing."""
    user = exchange.user
    text = _text(data, user=user)
    without_proof, _, proof_text = text.rpartition(",p=")
    binding, _, rest = without_proof.partition(",")
    nonce, _, extensions = rest.partition(",")
    if binding != _CHANNEL_BINDING:
        raise LoginFailed("the channel binding is not that of the first message", user=user)
    if not hmac.compare_digest(nonce.encode(), f"r={exchange.nonce}".encode()):
        raise LoginFailed("the nonce is not the one that was sent", user=user)
    _check_extensions(extensions, user=user)
    proof = _base64(proof_text, user=user)
    make_hash = _HASHES[exchange.mechanism]
    credential = exchange.credential
    signed = f"{exchange.signed},{without_proof}".encode()
    signature = hmac.digest(credential.stored_key, signed, HASH_NAMES[exchange.mechanism])
    if len(proof) != len(signature):
        raise LoginFailed("the proof has the wrong size", user=user)
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    is_proved = hmac.compare_digest(make_hash(client_key).digest(), credential.stored_key)
    answer = hmac.digest(credential.server_key, signed, HASH_NAMES[exchange.mechanism])
    if not (is_proved and exchange.is_known):
        reason = "wrong password" if exchange.is_known else "unknown user"
        raise LoginFailed(reason, user=user)
    return b"v=" + base64.b64encode(answer)


# Credentials.


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """Return the hash of a password. This takes long, on purpose."""
    return hashlib.pbkdf2_hmac(HASH_NAMES[mechanism], password.encode(), salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Return what a node stores of a salted password."""
    name = HASH_NAMES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(
        iterations=iterations,
        salt=salt,
        stored_key=_HASHES[mechanism](client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


def make_credential(
    mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Return what a node stores of a password. This takes long, on purpose."""
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_of(mechanism, salted, salt=salt, iterations=iterations)


def is_password(mechanism: ScramMechanism, password: str, credential: ScramCredential) -> bool:
    """Return whether a credential is that of a password. This takes long, on purpose."""
    made = make_credential(
        mechanism, password, salt=credential.salt, iterations=credential.iterations
    )
    return hmac.compare_digest(made.stored_key, credential.stored_key)


def make_salt(drawn: bytes) -> bytes:
    """Return a salt from random bytes, in the form that Kafka's tools give to theirs.

    All salts look alike, so that none tells how a user was made, or that there is one.
    """
    number = int.from_bytes(drawn, "big") % 2**SALT_BITS
    digits = []
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)).encode() or b"0"


def assumed_shape(
    user: str, in_use: Sequence[ScramShape], *, secret: bytes, default: ScramShape
) -> ScramShape:
    """Return the shape of the credential that a user without one seems to have.

    It is one of those in use, the same each time: Kafka's tools use other iterations than a node
    does, and a count that no user has would tell that there is no such user.
    """
    if not in_use:
        return default
    number = int.from_bytes(hmac.digest(secret, f"shape\0{user}".encode(), "sha256"), "big")
    return in_use[number % len(in_use)]


def derived_credential(
    mechanism: ScramMechanism, user: str, *, secret: bytes, iterations: int
) -> ScramCredential:
    """Return a credential for a user that has none, the same each time. No password fits it."""

    def derive(purpose: str) -> bytes:
        message = f"{mechanism.value}\0{purpose}\0{user}".encode()
        return hmac.digest(secret, message, HASH_NAMES[mechanism])

    return ScramCredential(
        iterations=iterations,
        salt=make_salt(derive("salt")),
        stored_key=derive("stored key"),
        server_key=derive("server key"),
    )


# Parsing.


def _text(data: bytes, *, user: str = "") -> str:
    if len(data) > MESSAGE_SIZE_MAX:
        raise LoginFailed(f"a message has more than {MESSAGE_SIZE_MAX} bytes", user=user)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise LoginFailed("a message is not UTF-8", user=user) from None


def _base64(text: str, *, user: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LoginFailed("the proof is not base64", user=user) from None


def _check_extensions(text: str, *, user: str = "") -> None:
    """Accept extensions, which are ignored, except one that must not be."""
    for extension in text.split(",") if text else ():
        if _EXTENSION.fullmatch(extension) is None or extension.startswith("m="):
            raise LoginFailed("a message has an extension that is not supported", user=user)
