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
"""What can be limited, by Kafka's names."""

QUOTAS_PATH = "/v1/quotas"

NONE = "none"
"""Has a rate be removed."""


class QuotaRate(click.ParamType):
    """A number above 0, in bytes with a unit where it is bytes; or `none`."""

    name = "rate"

    def __init__(self, *, is_bytes: bool) -> None:
        self._is_bytes = is_bytes

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        """Return the number, or `none`."""
        text = str(value).strip().lower()
        if text == NONE:
            return NONE
        try:
            rate = quantity(str(value), BYTE_UNITS) if self._is_bytes else float(text)
        except ValueError:
            rate = 0
        if not 0 < rate < float("inf"):
            units = ", with a unit such as KiB or MB" if self._is_bytes else ""
            self.fail(f"{value!r} is no number above 0{units}, and not {NONE!r}", param, ctx)
        return rate


def entity_options(command: F) -> F:
    """Give a command the options that say whose quotas are meant."""
    options = (
        click.option("--user", metavar="NAME", help="Whose quota it is: this user's."),
        click.option(
            "--default-user",
            "is_default_user",
            is_flag=True,
            help="Of every user that has no quota of its own.",
        ),
        click.option(
            "--client-id",
            metavar="NAME",
            help="Of clients that call themselves so; with a user, of those of this user.",
        ),
        click.option(
            "--default-client-id",
            "is_default_client_id",
            is_flag=True,
            help="Of every client id that has no quota of its own.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _entity(names: dict[str, Any]) -> dict[str, Any]:
    """Return whose quotas are meant, as the node is told."""
    entity: dict[str, Any] = {}
    for kind, option in (("user", "user"), ("client_id", "client-id")):
        if names[f"is_default_{kind}"]:
            if names[kind] is not None:
                raise click.UsageError(f"--{option} and --default-{option} exclude each other")
            entity[kind] = {"default": True}
        elif names[kind] is not None:
            entity[kind] = names[kind]
    if not entity:
        raise click.UsageError("needed is a user, a client id, or both: whose quota it is")
    return entity


@click.command("set")
@entity_options
@click.option(
    "--producer-byte-rate",
    type=QuotaRate(is_bytes=True),
    help="Bytes a second that may be sent to be kept.",
)
@click.option(
    "--consumer-byte-rate", type=QuotaRate(is_bytes=True), help="Bytes a second that may be read."
)
@click.option(
    "--request-percentage",
    type=QuotaRate(is_bytes=False),
    help="Percent of a core that requests may take.",
)
@click.option(
    "--controller-mutation-rate",
    type=QuotaRate(is_bytes=False),
    help="Partitions that may be created or deleted a second.",
)
@server_option
@json_option
def set_quota(*, server: str, as_json: bool, **given: Any) -> None:
    """Set quotas of a user, a client id, or both; rates that are not named stay.

    `none` removes a rate. Quotas hold from then on, at every door, and survive a restart. As long
    as nobody has to log in, every client is the user `ANONYMOUS`: set quotas by client id.

    \b
    Exit status:
        0  set
        1  not set
        2  wrong usage

    \b
    Example:
        millstream quota set --default-client-id --consumer-byte-rate "10 MiB"
    """  # noqa: D301 - click's mark for lines to leave as they are.
    rates = {name: given[name] for name in RATES if given[name] is not None}
    if not rates:
        raise click.UsageError("needed is a rate: how much may be used")
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
    """  # noqa: D301 - click's mark for lines to leave as they are.
    entity = _entity(given)
    with connected(server) as node:
        answer = node.ask("DELETE", QUOTAS_PATH, entity, field="removed")
    if not answer["removed"]:
        raise click.ClickException("there was no quota to remove")
    names = ", ".join(answer["removed"])
    click.echo(to_json(answer) if as_json else printable(f"removed {names}"))
