"""SCRAM: the vectors of the RFCs, and everything that must not log anyone in."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.access.credentials import ScramCredential, ScramMechanism, ScramShape
from millstream.broker.access.sasl.failure import LoginFailed
from millstream.broker.access.sasl.scram import (
    ITERATIONS_MIN,
    MESSAGE_SIZE_MAX,
    ClientFirst,
    ScramChallenge,
    assumed_shape,
    challenge,
    derived_credential,
    finish,
    is_password,
    make_credential,
    make_salt,
    read_client_first,
)

SHA_256, SHA_512 = ScramMechanism
SECRET = b"secret of the cluster"
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"

# RFC 7677, section 3: the user "user" with the password "pencil".
RFC_FIRST = f"n,,n=user,r={NONCE}".encode()
RFC_CHALLENGE = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
RFC_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
RFC_SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
RFC_CREDENTIAL = make_credential(
    SHA_256, "pencil", salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4096
)


def begun(
    credential: ScramCredential | None = RFC_CREDENTIAL,
    *,
    first: bytes = RFC_FIRST,
    mechanism: ScramMechanism = SHA_256,
    server_nonce: str = SERVER_NONCE,
) -> tuple[bytes, ScramChallenge]:
    return challenge(
        mechanism,
        read_client_first(first),
        credential,
        server_nonce=server_nonce,
        secret=SECRET,
        iterations=4096,
    )


def proof(exchange: ScramChallenge, password: str, *, nonce: str | None = None) -> bytes:
    """The last message of a client that knows a password, written from the RFC."""
    name = {SHA_256: "sha256", SHA_512: "sha512"}[exchange.mechanism]
    credential = exchange.credential
    salted = hashlib.pbkdf2_hmac(name, password.encode(), credential.salt, credential.iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    without_proof = f"c=biws,r={nonce or exchange.nonce}"
    signed = f"{exchange.signed},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    made = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(made).decode()}".encode()


def test_the_exchange_of_rfc_7677_is_the_one_of_the_rfc() -> None:
    answer, exchange = begun()
    assert answer == RFC_CHALLENGE
    assert finish(exchange, RFC_FINAL) == RFC_SIGNATURE


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_client_that_knows_the_password_gets_in(mechanism: ScramMechanism) -> None:
    credential = make_credential(mechanism, "geheim, =ß", salt=b"salt", iterations=4096)
    _, exchange = begun(credential, mechanism=mechanism)
    assert finish(exchange, proof(exchange, "geheim, =ß")).startswith(b"v=")
    assert is_password(mechanism, "geheim, =ß", credential)
    assert not is_password(mechanism, "Geheim, =ß", credential)


def test_commas_and_equals_signs_in_a_name_are_read() -> None:
    assert read_client_first(b"n,,n=a=2Cb=3Dc,r=x") == ClientFirst("a,b=c", "x", "n=a=2Cb=3Dc,r=x")
    assert read_client_first(b"n,,n=a,r=x,tokenauth=true"[:-15] + b",t=true").user == "a"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=admin,n=user,r=abc",
        b"n,a=user,n=user,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=abc,m=x",
        b"n,,n=user,r=abc,,",
        b"n,,r=abc,n=user",
        b"n,,n=us\xffer,r=abc",
        b"n,,n=" + b"u" * 256 + b",r=abc",
        b"n,,n=u,r=" + b"r" * 2000,
        b"n,,n=u,r=" + b"r" * MESSAGE_SIZE_MAX,
    ],
)
def test_a_first_message_that_is_not_as_in_the_rfc_is_refused(message: bytes) -> None:
    with pytest.raises(LoginFailed):
        read_client_first(message)


def test_a_nonce_that_was_not_sent_proves_nothing() -> None:
    """A server that takes any nonce can be replayed to (CVE-2024-56128)."""
    _, exchange = begun()
    for nonce in (NONCE, SERVER_NONCE, exchange.nonce[:-1], exchange.nonce + "x", "x"):
        with pytest.raises(LoginFailed) as failed:
            finish(exchange, proof(exchange, "pencil", nonce=nonce))
        assert failed.value.reason == "the nonce is not the one that was sent"


def test_a_final_message_is_of_no_use_in_another_exchange() -> None:
    _, first = begun()
    recorded = proof(first, "pencil")
    assert finish(first, recorded)
    _, second = begun(server_nonce="another")
    with pytest.raises(LoginFailed):
        finish(second, recorded)


def test_a_proof_of_one_user_does_not_serve_for_another() -> None:
    _, exchange = begun()
    _, other = begun(first=RFC_FIRST.replace(b"n=user", b"n=root"))
    with pytest.raises(LoginFailed):
        finish(other, proof(exchange, "pencil"))


def test_a_proof_with_fewer_rounds_proves_nothing() -> None:
    _, exchange = begun()
    weaker = make_credential(SHA_256, "pencil", salt=RFC_CREDENTIAL.salt, iterations=1)
    with pytest.raises(LoginFailed):
        finish(exchange, proof(exchange._replace(credential=weaker), "pencil"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        RFC_FINAL[:-1],
        RFC_FINAL + b"=",
        RFC_FINAL.replace(b"c=biws", b"c=eSws"),
        RFC_FINAL.replace(b"c=biws,", b""),
        RFC_FINAL.replace(b",p=", b",m=1,p="),
        RFC_FINAL.replace(b",p=", b",x,p="),
        RFC_FINAL.partition(b",p=")[0],
        RFC_FINAL.partition(b",p=")[0] + b",p=",
        RFC_FINAL.partition(b",p=")[0] + b",p=AAAA",
        RFC_FINAL.replace(b"p=dHz", b"p=dHy"),
        b"\xff" + RFC_FINAL,
        RFC_FINAL + b"A" * MESSAGE_SIZE_MAX,
    ],
)
def test_a_final_message_that_is_not_the_one_of_the_exchange_is_refused(message: bytes) -> None:
    _, exchange = begun()
    with pytest.raises(LoginFailed):
        finish(exchange, message)


@given(st.binary(max_size=200))
def test_noise_logs_nobody_in(noise: bytes) -> None:
    with pytest.raises(LoginFailed):
        read_client_first(noise)
    _, exchange = begun()
    with pytest.raises(LoginFailed):
        finish(exchange, noise)


# Users that do not exist.


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_unknown_users_look_like_known_ones(mechanism: ScramMechanism) -> None:
    drawn = hashlib.sha512(b"drawn").digest()
    known = make_credential(mechanism, "x", salt=make_salt(drawn), iterations=4096)
    shapes = set()
    for number in range(50):
        for credential in (known, None):
            first = f"n,,n=user-{number},r=abc".encode()
            answer, exchange = begun(credential, first=first, mechanism=mechanism)
            again, _ = begun(credential, first=first, mechanism=mechanism)
            assert again == answer, "the salt is the same each time"
            fields = [field.partition("=") for field in answer.decode().split(",")]
            salt = base64.b64decode(fields[1][2])
            assert salt.isalnum()
            assert len(salt) in (23, 24, 25, 26)
            shapes.add((tuple(name for name, _, _ in fields), fields[2][2]))
            with pytest.raises(LoginFailed) as failed:
                finish(exchange, proof(exchange, "wrong"))
            shapes.add(str(failed.value))
    assert len(shapes) == 2


def test_salts_of_unknown_users_differ_by_user_mechanism_and_cluster() -> None:
    salts = {
        derived_credential(mechanism, user, secret=secret, iterations=ITERATIONS_MIN).salt
        for mechanism in ScramMechanism
        for user in ("a", "b")
        for secret in (b"1", b"2")
    }
    assert len(salts) == 8


def test_an_unknown_user_seems_to_have_one_of_the_shapes_in_use() -> None:
    default = ScramShape(SHA_256, 15_000)
    in_use = [ScramShape(SHA_256, 4096), ScramShape(SHA_256, 8192)]
    names = [f"user-{number}" for number in range(50)]
    shapes = [assumed_shape(name, in_use, secret=b"x", default=default) for name in names]
    assert set(shapes) == set(in_use)
    assert shapes == [assumed_shape(name, in_use, secret=b"x", default=default) for name in names]
    assert shapes != [assumed_shape(name, in_use, secret=b"y", default=default) for name in names]
    assert assumed_shape("user", [], secret=b"x", default=default) == default


def test_an_unknown_user_does_not_get_in_with_the_derived_keys() -> None:
    _, exchange = begun(None)
    assert not exchange.is_known
    # Even if someone found a client key for the derived stored key, the user does not exist.
    known = make_credential(SHA_256, "pencil", salt=b"s", iterations=4096)
    forged = exchange._replace(credential=known)
    with pytest.raises(LoginFailed, match="the login failed") as failed:
        finish(forged, proof(forged, "pencil"))
    assert failed.value.reason == "unknown user"
