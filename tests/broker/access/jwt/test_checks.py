"""Which JWTs are accepted, and which never are."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from millstream.broker.access.jwt.checks import JwtLogin, UnknownJwtKey, check_jwt
from millstream.broker.access.jwt.key_set import KeySet, read_key_set
from millstream.broker.access.sasl.failure import LoginFailed
from millstream.config.schema import JwtAlgorithm, OAuthConfig
from millstream.errors import InvalidConfig

from .issuer import AUDIENCE, ISSUER, NOW_S, Issuer, part

CONFIG = OAuthConfig(issuer=ISSUER, audience=AUDIENCE, jwks_file="unused", leeway_ms=10_000)
LEEWAY_S = 10
NESTED = b'{"alg": "RS256", "kid": ' + b"[" * 9_000
"""JSON that a parser which recurses gives up."""


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return (
        Issuer()
        .add_rsa("rsa")
        .add_rsa("pinned", alg="RS512")
        .add_rsa("short", bits=1024)
        .add_curve("p256", ec.SECP256R1())
        .add_curve("p384", ec.SECP384R1())
    )


@pytest.fixture(scope="module")
def keys(issuer: Issuer) -> KeySet:
    return read_key_set(issuer.jwks)


def check(
    text: str, keys: KeySet, config: OAuthConfig = CONFIG, *, now_s: float = NOW_S
) -> JwtLogin:
    return check_jwt(text, keys, config, now_ms=int(now_s * 1000))


ALGORITHMS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "rsa"),
    "ES256": "p256",
    "ES384": "p384",
}


@pytest.mark.parametrize(("algorithm", "key_id"), ALGORITHMS.items())
def test_a_valid_jwt_names_its_user_and_its_end(issuer, keys, algorithm, key_id):
    login = check(issuer.token(key_id, algorithm), keys)
    assert login == JwtLogin("alice", (NOW_S + 600 + LEEWAY_S) * 1000)


def test_all_algorithms_are_tried_here():
    assert set(ALGORITHMS) == {algorithm.value for algorithm in JwtAlgorithm}


def test_a_jwt_without_a_key_id_may_be_signed_by_any_key(issuer, keys):
    assert check(issuer.token("rsa", headers={"kid": None}), keys).user == "alice"


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"iss": None},
        {"iss": ISSUER + "/"},
        {"iss": [ISSUER]},
        {"aud": "another"},
        {"aud": ["another"]},
        {"aud": []},
        {"aud": None},
        {"aud": AUDIENCE.upper()},
        {"exp": None},
        {"exp": "never"},
        {"exp": str(NOW_S + 600)},
        {"exp": True},
        {"exp": 1e300},
        {"exp": -1},
        {"exp": {}},
        {"exp": NOW_S - LEEWAY_S},
        {"nbf": NOW_S + LEEWAY_S + 1},
        {"nbf": "now"},
        {"iat": NOW_S + LEEWAY_S + 1},
        {"iat": []},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": ["alice"]},
        {"sub": "a" * 256},
        {"sub": "a\nb"},
        {"sub": "ANONYMOUS"},
        {"sub": "*"},
    ],
    ids=str,
)
def test_a_jwt_with_a_wrong_claim_is_refused(issuer, keys, claims):
    with pytest.raises(LoginFailed):
        check(issuer.token("rsa", **claims), keys)


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": [AUDIENCE, "another"]},
        {"exp": NOW_S - LEEWAY_S + 1},
        {"exp": NOW_S + 0.5},
        {"nbf": NOW_S + LEEWAY_S},
        {"nbf": NOW_S - 1000},
        {"iat": None},
        {"roles": {"admin": True}},
    ],
    ids=str,
)
def test_a_jwt_within_the_leeway_or_with_more_claims_is_accepted(issuer, keys, claims):
    assert check(issuer.token("rsa", **claims), keys).user == "alice"


def test_the_login_ends_after_now_even_if_the_jwt_has_expired_within_the_leeway(issuer, keys):
    login = check(issuer.token("rsa", exp=NOW_S - 5), keys)
    assert login.expires_ms > NOW_S * 1000


def test_no_infinite_number_is_a_time(issuer, keys):
    for value in (float("inf"), float("nan"), float("-inf")):
        with pytest.raises(LoginFailed):
            check(issuer.token("rsa", exp=value), keys)


def unsigned(algorithm: Any, signature: bytes = b"", **header: Any) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "root", "exp": NOW_S + 600}
    head = {"alg": algorithm, "kid": "rsa", **header}
    return f"{part(head)}.{part(claims)}.{part(signature) if signature else ''}"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 7, ["RS256"]])
def test_a_jwt_without_a_signature_is_refused(keys, algorithm):
    for signature in (b"", b"x", bytes(256)):
        with pytest.raises(LoginFailed):
            check(unsigned(algorithm, signature), keys)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_jwt_that_is_signed_with_the_public_key_as_a_secret_is_refused(issuer, keys, algorithm):
    """The confusion of algorithms: everyone knows the public key."""
    public = issuer.keys["rsa"].public_key()
    name = "sha" + algorithm.removeprefix("HS")
    for secret in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(issuer.entries["rsa"]).encode(),
        b"",
    ):
        signed = unsigned(algorithm).removesuffix(".")
        signature = hmac.new(secret, signed.encode(), getattr(hashlib, name)).digest()
        with pytest.raises(LoginFailed):
            check(f"{signed}.{part(signature)}", keys)


def test_algorithms_that_the_operator_has_not_allowed_are_refused(issuer, keys):
    config = OAuthConfig(
        issuer=ISSUER, audience=AUDIENCE, jwks_file="x", algorithms=(JwtAlgorithm.ES256,)
    )
    assert check(issuer.token("p256", "ES256"), keys, config).user == "alice"
    with pytest.raises(LoginFailed):
        check(issuer.token("rsa", "RS256"), keys, config)


def test_a_key_is_used_with_the_algorithm_that_it_names_only(issuer, keys):
    assert check(issuer.token("pinned", "RS512"), keys).user == "alice"
    with pytest.raises(UnknownJwtKey):
        check(issuer.token("pinned", "RS256"), keys)


@pytest.mark.parametrize(
    ("key_id", "algorithm"), [("p256", "ES384"), ("p384", "ES256"), ("rsa", "ES256")]
)
def test_a_key_of_one_type_is_not_used_with_an_algorithm_of_another(
    issuer, keys, key_id, algorithm
):
    signed_by = {"ES384": "p384", "ES256": "p256"}[algorithm]
    token = issuer.token(signed_by, algorithm, headers={"kid": key_id})
    with pytest.raises(UnknownJwtKey):
        check(token, keys)


def test_keys_of_others_are_not_accepted_whatever_the_jwt_says_about_them(issuer, keys):
    mallory = Issuer().add_rsa("rsa")
    entry = mallory.entries["rsa"]
    for headers in (
        {},
        {"kid": None},
        {"jwk": entry},
        {"jku": "https://evil.example/jwks"},
        {"x5u": "https://evil.example/x"},
        {"kid": "../../rsa"},
        {"kid": "rsa' or '1'='1"},
    ):
        with pytest.raises(LoginFailed):
            check(mallory.token("rsa", headers=headers), keys)


def test_extensions_that_must_be_understood_are_refused(issuer, keys):
    for headers in ({"crit": ["exp"]}, {"b64": False, "crit": ["b64"]}):
        with pytest.raises(LoginFailed):
            check(issuer.token("rsa", headers=headers), keys)


def test_every_change_of_a_signed_jwt_is_noticed(issuer, keys):
    head, claims, signature = issuer.token("rsa").split(".")
    other = part({"iss": ISSUER, "aud": AUDIENCE, "sub": "root", "exp": NOW_S + 600})
    for text in (
        f"{head}.{other}.{signature}",
        f"{head}.{claims}.{signature[:-4]}AAAA",
        f"{head}.{claims}.",
        f"{head}.{claims}",
        f"{head}.{claims}.{signature}.x",
        f"{head}..{signature}",
        "",
        ".",
        "..",
        "x" * 20_000,
        "ünïcode.a.b",
        f"{part(b'[' * 9_000)}.{claims}.{signature}",
        f"{part(b'{' * 9_000)}.{claims}.{signature}",
        f"{part(NESTED)}.{claims}.{signature}",
        f"{part(b'null')}.{claims}.{signature}",
        f"{part({'alg': {'a': 1}})}.{claims}.{signature}",
        f"{part({'alg': 'RS256', 'kid': 7})}.{claims}.{signature}",
    ):
        with pytest.raises(LoginFailed):
            check(text, keys)


def test_the_claim_that_names_the_user_can_be_chosen(issuer, keys):
    config = OAuthConfig(
        issuer=ISSUER, audience=AUDIENCE, jwks_file="x", principal_claim="client_id"
    )
    assert check(issuer.token("rsa", client_id="loader"), keys, config).user == "loader"
    with pytest.raises(LoginFailed):
        check(issuer.token("rsa"), keys, config)


# Key sets.


def test_keys_that_cannot_be_used_are_left_out(issuer, keys):
    assert {key.id for key in keys.keys} == {"rsa", "pinned", "p256", "p384"}
    usable = issuer.entries["rsa"]
    bad = [
        {**usable, "kid": "encryption", "use": "enc"},
        {**usable, "kid": "signing", "key_ops": ["sign"]},
        {**usable, "kid": "private", "d": "AQAB"},
        {**usable, "kid": 7},
        {**usable, "kid": "other", "alg": "HS256"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        {"kty": "RSA", "kid": "nothing"},
        {"kty": "RSA", "kid": "noise", "n": "!!", "e": "AQAB"},
        {"kty": "EC", "crv": "P-521", "kid": "curve"},
        {"kty": "OKP", "crv": "Ed25519", "x": "x", "kid": "ed"},
        "text",
        None,
        [],
    ]
    read = read_key_set(json.dumps({"keys": [*bad, usable]}).encode())
    assert [key.id for key in read.keys] == ["rsa"]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"7", b'{"keys": {}}', b'{"keys": []}', b'{"keys": [{"kty": "oct"}]}',
     b'{"keys": [' + b",".join([b"{}"] * 101) + b"]}", b"\xff", b"[" * 100_000],
)  # fmt: skip
def test_a_key_set_without_a_usable_key_is_refused(data: bytes):
    with pytest.raises(InvalidConfig, match="key"):
        read_key_set(data)
