"""How Kafka clients of ours connect: by TLS or not, and as whom they log in.

All of them, in Spark, in pipelines and on the command line, know the same settings, by names of
their own; what is not set is taken from the environment. A setting is never a secret: it names the
file that has it. Only the environment can have the password itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.clients.kafka.login import PASSWORD_VARIABLE, KafkaLogin, LoginMechanism
from millstream.clients.tls import VARIABLES as TLS_VARIABLES
from millstream.clients.tls import ClientTls
from millstream.errors import InvalidConfig

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

TLS_SETTINGS = ("ca_file", "cert_file", "key_file")
LOGIN_SETTINGS = ("user", "password_file", "mechanism")
SECURITY_SETTINGS = ("protocol", *TLS_SETTINGS, *LOGIN_SETTINGS)

FILE_SETTINGS = (*TLS_SETTINGS, "password_file")
"""Settings that are paths."""

VARIABLES: Mapping[str, str] = {
    "protocol": "MILLSTREAM_SECURITY_PROTOCOL",
    **TLS_VARIABLES,
    "user": "MILLSTREAM_USER",
    "password_file": "MILLSTREAM_PASSWORD_FILE",
    "mechanism": "MILLSTREAM_SASL_MECHANISM",
}
"""The variables of the environment, by setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """TLS and login of a Kafka client; `None` for neither."""

    tls: ClientTls | None = None
    login: KafkaLogin | None = None

    def settings(self) -> dict[str, str]:
        """Return the settings that make the same value anywhere, with absolute paths."""
        tls, login = self.tls or ClientTls(), self.login
        protocol = "SSL" if self.tls is not None else "PLAINTEXT"
        values = {
            "protocol": protocol if login is None else f"SASL_{protocol}",
            **{name: getattr(tls, name) for name in TLS_SETTINGS},
        }
        if login is not None:
            values["user"] = login.user
            values["password_file"] = login.password_file
            values["mechanism"] = login.mechanism.value
        return absolute_files({name: text for name, text in values.items() if text is not None})


NO_SECURITY = KafkaSecurity()


def absolute_files(settings: Mapping[str, str], home: str = "") -> dict[str, str]:
    """Return settings with absolute paths; relative ones start at `home`."""
    return {
        name: os.path.abspath(os.path.join(home, text)) if name in FILE_SETTINGS else text
        for name, text in settings.items()
    }


def parse_security(
    given: Mapping[str, str],
    *,
    names: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    is_tls: bool = False,
    environment: Mapping[str, str] | None = None,
) -> KafkaSecurity:
    """Return the security of a client; raise `InvalidConfig` for settings that do not fit.

    `given` precedes `defaults`, which precede the environment. Settings of those two that the
    protocol does not need are left alone; in `given` they are refused. Without a protocol, a client
    with a user logs in by TLS, and one with files of certificates, or with `is_tls`, uses TLS.
    `names` are those by which the caller knows the settings.
    """
    environment = os.environ if environment is None else environment
    from_environment = {
        name: text for name, variable in VARIABLES.items() if (text := environment.get(variable))
    }
    values = from_environment | dict(defaults or {}) | dict(given)
    shown = {name: name for name in SECURITY_SETTINGS} | dict(names or {})
    protocol = _protocol(values, shown, is_tls=is_tls)
    has_tls, has_login = protocol.endswith("SSL"), protocol.startswith("SASL_")
    for name in given:
        if name in LOGIN_SETTINGS and not has_login:
            needed = "SASL_SSL"
        elif name in TLS_SETTINGS and not has_tls:
            needed = "SSL or SASL_SSL"
        else:
            continue
        raise InvalidConfig(f"{shown[name]} requires {shown['protocol']} {needed}, got {protocol}")
    return KafkaSecurity(
        tls=_tls(values, shown) if has_tls else None,
        login=_login(values, shown, protocol, environment) if has_login else None,
    )


def _protocol(values: Mapping[str, str], shown: Mapping[str, str], *, is_tls: bool) -> str:
    text = values.get("protocol")
    if text is None:
        if "user" in values:
            return "SASL_SSL"
        return "SSL" if is_tls or any(name in values for name in TLS_SETTINGS) else "PLAINTEXT"
    if text.upper() not in PROTOCOLS:
        raise InvalidConfig(
            f"{shown['protocol']} must be one of {', '.join(PROTOCOLS)}, got {text[:100]!r}"
        )
    return text.upper()


def _tls(values: Mapping[str, str], shown: Mapping[str, str]) -> ClientTls:
    for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if one in values and other not in values:
            raise InvalidConfig(f"{shown[other]} must be set together with {shown[one]}")
    return ClientTls(**{name: values[name] for name in TLS_SETTINGS if name in values})


def _login(
    values: Mapping[str, str],
    shown: Mapping[str, str],
    protocol: str,
    environment: Mapping[str, str],
) -> KafkaLogin:
    if not values.get("user"):
        raise InvalidConfig(f"{shown['user']} must be set if {shown['protocol']} is {protocol}")
    mechanisms = {mechanism.value: mechanism for mechanism in LoginMechanism}
    text = values.get("mechanism", LoginMechanism.SCRAM_SHA_256.value)
    if text.upper() not in mechanisms:
        raise InvalidConfig(
            f"{shown['mechanism']} must be one of {', '.join(mechanisms)}, got {text[:100]!r}"
        )
    file = values.get("password_file")
    if file is None and not environment.get(PASSWORD_VARIABLE):
        raise InvalidConfig(
            f"{shown['password_file']} must be set if {shown['protocol']} is {protocol},"
            f" or the variable {PASSWORD_VARIABLE}"
        )
    return KafkaLogin(user=values["user"], password_file=file, mechanism=mechanisms[text.upper()])
