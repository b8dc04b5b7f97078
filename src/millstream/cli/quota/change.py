"""`millstream quota set` and `millstream quota remove`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json
from millstream.config.units import BYTE_UNITS, quantity

F = TypeVar("F", bound=Callable[..., Any])

RATES = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
"""Quota types by their Kafka names."""

QUOTAS_PATH = "/v1/quotas"

NONE = "none"
"""Value that removes a rate."""


class QuotaRate(click.ParamType):
    """A positive number, with a unit if it is in bytes, or `none`."""

    name = "rate"

    def __init__(self, *, is_bytes: bool) -> None:
        self._is_bytes = is_bytes

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        text = str(value).strip().lower()
        if text == NONE:
            return NONE
        try:
            rate = quantity(str(value), BYTE_UNITS) if self._is_bytes else float(text)
        except ValueError:
            rate = 0
        if not 0 < rate < float("inf"):
            units = ", with a unit such as KiB or MB" if self._is_bytes else ""
            self.fail(f"must be a number above 0{units}, or {NONE!r}, got {value!r}", param, ctx)
        return rate


def entity_options(command: F) -> F:
    """Add the options that name the entity of a quota."""
    options = (
        click.option("--user", metavar="NAME", help="Quota of this user."),
        click.option(
            "--default-user",
            "is_default_user",
            is_flag=True,
            help="Default quota of users without a quota of their own.",
        ),
        click.option(
            "--client-id",
            metavar="NAME",
            help="Quota of clients with this client id; with a user, of that user's clients.",
        ),
        click.option(
            "--default-client-id",
            "is_default_client_id",
            is_flag=True,
            help="Default quota of client ids without a quota of their own.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _entity(names: dict[str, Any]) -> dict[str, Any]:
    """Return the entity in the form of the HTTP API."""
    entity: dict[str, Any] = {}
    for kind, option in (("user", "user"), ("client_id", "client-id")):
        if names[f"is_default_{kind}"]:
            if names[kind] is not None:
                raise click.UsageError(f"--{option} and --default-{option} cannot be combined")
            entity[kind] = {"default": True}
        elif names[kind] is not None:
            entity[kind] = names[kind]
    if not entity:
        raise click.UsageError("a user, a client id, or both are required")
    return entity


@click.command("set")
@entity_options
@click.option(
    "--producer-byte-rate",
    type=QuotaRate(is_bytes=True),
    help="Bytes per second that may be written.",
)
@click.option(
    "--consumer-byte-rate", type=QuotaRate(is_bytes=True), help="Bytes per second that may be read."
)
@click.option(
    "--request-percentage",
    type=QuotaRate(is_bytes=False),
    help="Percentage of one core that requests may use.",
)
@click.option(
    "--controller-mutation-rate",
    type=QuotaRate(is_bytes=False),
    help="Partitions that may be created or deleted per second.",
)
@server_option
@json_option
def set_quota(*, server: str, as_json: bool, **given: Any) -> None:
    """Set quotas of a user, a client id, or both. Rates that are not given are not changed.

    `none` removes a rate. Quotas take effect at once, at every server, and survive a restart.
    Without authentication every client is the user `ANONYMOUS`: set quotas by client id.

    \b
    Exit status:
        0  set
        1  not set
        2  wrong usage

    \b
    Example:
        millstream quota set --default-client-id --consumer-byte-rate "10 MiB"
    """
    rates = {name: given[name] for name in RATES if given[name] is not None}
    if not rates:
        raise click.UsageError("a rate is required")
    changes = {name: None if rate == NONE else rate for name, rate in rates.items()}
    body = {**_entity(given), "rates": changes}
    with connected(server) as node:
        answer = node.ask("PUT", QUOTAS_PATH, body, field="rates")
    if as_json:
        click.echo(to_json(answer))
        return
    shown = [f"{name} {rate:.15g}" for name, rate in answer["rates"].items()]
    click.echo(", ".join(shown) or "no quotas left")


@click.command("remove")
@entity_options
@server_option
@json_option
def remove_quota(*, server: str, as_json: bool, **given: Any) -> None:
    """Remove all quotas of a user, a client id, or both.

    \b
    Exit status:
        0  removed
        1  there was none, or it could not be removed
        2  wrong usage

    \b
    Example:
        millstream quota remove --client-id etl
    """
    entity = _entity(given)
    with connected(server) as node:
        answer = node.ask("DELETE", QUOTAS_PATH, entity, field="removed")
    if not answer["removed"]:
        raise click.ClickException("there was no quota to remove")
    names = ", ".join(answer["removed"])
    click.echo(to_json(answer) if as_json else printable(f"removed {names}"))
