"""The checks of a JWT: signature, issuer, audience, times and user. Pure.

The algorithm is one of those that the operator has allowed, and of those that the key is for. What
a JWT says about where its key is (`jwk`, `jku`, `x5u`) is not looked at.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from millstream.broker.access.jwt.key_set import KeySet
from millstream.broker.access.principal import ANONYMOUS, EVERY_USER, check_name
from millstream.broker.access.sasl.failure import LoginFailed
from millstream.config.schema import JwtAlgorithm, OAuthConfig
from millstream.errors import InvalidRequest

JWT_SIZE_MAX = 16 * 1024
SECONDS_MAX = 10**11
"""Latest time in a claim, about the year 5138: larger numbers overflow further on."""


class UnknownJwtKey(LoginFailed):
    """A JWT was signed by a key that is not known, or not yet."""


class JwtHeader(NamedTuple):
    """What a JWT says of its signature."""

    algorithm: JwtAlgorithm
    key_id: str | None


class JwtLogin(NamedTuple):
    """A user that the issuer has vouched for."""

    user: str
    expires_ms: int
    """When the login ends: when the JWT expires, with the leeway."""


def read_jwt_header(text: str, config: OAuthConfig) -> JwtHeader:
    """Return what a JWT says of its signature; raise `LoginFailed` if that is not allowed."""
    from jwt import PyJWTError, get_unverified_header  # noqa: PLC0415

    if len(text) > JWT_SIZE_MAX:
        raise LoginFailed(f"a JWT has more than {JWT_SIZE_MAX} characters")
    try:
        header = get_unverified_header(text)
    except (PyJWTError, ValueError, TypeError, RecursionError):
        # Anyone can send anything: also JSON that is nested too deeply for a parser.
        raise LoginFailed("the token is not a JWT") from None
    algorithm = next((each for each in config.algorithms if each.value == header.get("alg")), None)
    if algorithm is None:
        raise LoginFailed("the algorithm of the JWT is not one of oauth.algorithms")
    if "crit" in header or header.get("b64", True) is not True:
        raise LoginFailed("the JWT has extensions that are not supported")
    key_id = header.get("kid")
    return JwtHeader(algorithm, key_id if isinstance(key_id, str) else None)


def check_jwt(text: str, keys: KeySet, config: OAuthConfig, *, now_ms: int) -> JwtLogin:
    """Return the user of a JWT; raise `LoginFailed` unless everything in it is right."""
    header = read_jwt_header(text, config)
    fitting = keys.fitting(header.key_id, header.algorithm)
    if not fitting:
        raise UnknownJwtKey("the key of the JWT is not known")
    claims = _verified(text, [key.key for key in fitting], header.algorithm, config)
    expires_ms = _check_times(claims, config.leeway_ms, now_ms)
    return JwtLogin(_user_of(claims, config.principal_claim), expires_ms)


def _verified(
    text: str, keys: list[Any], algorithm: JwtAlgorithm, config: OAuthConfig
) -> dict[str, Any]:
    """Return the claims of a JWT, which one of the keys has signed."""
    from jwt import InvalidSignatureError, PyJWTError, decode  # noqa: PLC0415

    for key in keys:
        try:
            return decode(
                text,
                key,
                algorithms=[algorithm.value],
                audience=config.audience,
                issuer=config.issuer,
                options={
                    "require": ["exp", "iss", "aud"],
                    # These need a clock that is passed in, and are checked here.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except InvalidSignatureError:
            continue
        except (PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise LoginFailed(f"the JWT is not accepted: {type(error).__name__}") from None
    raise LoginFailed("the signature of the JWT is wrong")


def _check_times(claims: dict[str, Any], leeway_ms: int, now_ms: int) -> int:
    """Return when the JWT ends; raise `LoginFailed` if it is not valid now."""
    expires_ms = _time_ms(claims, "exp")
    assert expires_ms is not None, "the claim is required"
    if now_ms >= expires_ms + leeway_ms:
        raise LoginFailed("the JWT has expired")
    for name in ("nbf", "iat"):
        begins_ms = _time_ms(claims, name)
        if begins_ms is not None and now_ms < begins_ms - leeway_ms:
            raise LoginFailed("the JWT is not valid yet")
    return expires_ms + leeway_ms


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    value: Any = claims.get(name)
    if value is None and name != "exp":
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value <= SECONDS_MAX:
        raise LoginFailed(f"{name} of the JWT is not a time")
    return int(value * 1000)


def _user_of(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str):
        raise LoginFailed("the JWT does not have the claim that names the user")
    try:
        check_name(value)
    except InvalidRequest:
        raise LoginFailed("the JWT has no valid name of a user") from None
    if value in (ANONYMOUS.name, EVERY_USER.name):
        raise LoginFailed("the JWT has a name that no user can have", user=value)
    return value
