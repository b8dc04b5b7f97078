"""Options of commands that connect to Kafka servers: TLS, and the user to log in as.

No option is a secret, because all users of a machine can see command lines: options name files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from millstream.cli.support.node_api import tls_files_given, tls_options
from millstream.errors import InvalidConfig

if TYPE_CHECKING:
    from millstream.clients.kafka.security import KafkaSecurity

F = TypeVar("F", bound=Callable[..., Any])

_KEY = "millstream.kafka_security"
"""In the context of a command: the settings that its options give."""

_OPTIONS = {
    "protocol": (
        "--security-protocol",
        "MILLSTREAM_SECURITY_PROTOCOL",
        "NAME",
        "How to connect to the Kafka server: PLAINTEXT, SSL, SASL_SSL or SASL_PLAINTEXT. The"
        " default is SASL_SSL with a user, SSL with a file of certificates, otherwise PLAINTEXT.",
    ),
    "user": ("--user", "MILLSTREAM_USER", "NAME", "User to log in as at the Kafka server."),
    "password_file": (
        "--password-file",
        "MILLSTREAM_PASSWORD_FILE",
        "FILE",
        "File with the password of that user in its first line. MILLSTREAM_PASSWORD can have the"
        " password itself.",
    ),
    "mechanism": (
        "--sasl-mechanism",
        "MILLSTREAM_SASL_MECHANISM",
        "NAME",
        "How to log in: SCRAM-SHA-256 (default), SCRAM-SHA-512 or PLAIN.",
    ),
}

_NAMES = {
    **{setting: option for setting, (option, *_) in _OPTIONS.items()},
    "ca_file": "--ca-file",
    "cert_file": "--cert-file",
    "key_file": "--key-file",
}


def login_options(command: F) -> F:
    """Add the options of logins, beside those of `server_option`."""
    for setting, (option, variable, metavar, text) in reversed(_OPTIONS.items()):
        command = click.option(
            option,
            setting,
            metavar=metavar,
            envvar=variable,
            show_envvar=True,
            expose_value=False,
            callback=_note,
            help=text,
        )(command)
    return command


def kafka_security_options(command: F) -> F:
    """Add the options of TLS and logins."""
    return tls_options(login_options(command))


def _note(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    name = parameter.name
    assert name is not None
    # Variables are read with the other settings: those that are not needed are ignored.
    is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if value is not None and is_given:
        context.meta.setdefault(_KEY, {})[name] = value


def given_security() -> dict[str, str]:
    """Return the settings that the options of the command give, without the environment."""
    meta = click.get_current_context().meta
    return {**tls_files_given(), **meta.get(_KEY, {})}


def kafka_security(server: str | None = None) -> KafkaSecurity:
    """Return how the command connects to Kafka servers.

    With `server`, the HTTP address of the same node, the files of certificates are for both; and if
    that is `https`, so is TLS. Settings that do not fit end the command.
    """
    from millstream.clients.kafka.security import parse_security  # noqa: PLC0415 - not for --help.

    given = given_security()
    shared: dict[str, str] = {}
    if server is not None:
        shared = {name: given.pop(name) for name in tls_files_given()}
    is_tls = server is not None and server.startswith("https:")
    try:
        return parse_security(given, names=_NAMES, defaults=shared, is_tls=is_tls)
    except InvalidConfig as error:
        raise click.UsageError(str(error)) from None
