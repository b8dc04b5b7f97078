"""`millstream quota`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.quota.change import QUOTAS_PATH, RATES, remove_quota, set_quota
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json

EVERYONE = "<default>"
"""Shown for the default quota."""

OTHERS = "<others>"
"""Shown for clients without any quota, to which the node's limit applies."""

_UNSET = "-"


@click.group()
def quota() -> None:
    """Show and change quotas of users and client ids.

    \b
    Example:
        millstream quota set --client-id etl --producer-byte-rate "1 MiB"
    """


@quota.command("list")
@server_option
@json_option
def list_quotas(server: str, *, as_json: bool) -> None:
    """List all quotas, and the limits of clients without one.

    Rates are bytes per second, percent of one core, and partitions per second. A name that does not
    apply is shown as `-`, the default for all others as `<default>`.

    \b
    Exit status:
        0  listed
        1  no node answers
        2  wrong usage

    \b
    Example:
        millstream quota list --json
    """
    with connected(server) as node:
        answer = node.ask("GET", QUOTAS_PATH, field="quotas")
    if as_json:
        click.echo(to_json(answer, indent=2))
        return
    rows = [
        [_name(rule, "user"), _name(rule, "client_id"), *_rates(rule)] for rule in answer["quotas"]
    ]
    if answer["defaults"]:
        rows.append([OTHERS, OTHERS, *_rates({"rates": answer["defaults"]})])
    columns = [name.replace("_", " ").upper() for name in RATES]
    print_table(["USER", "CLIENT ID", *columns], rows)


def _name(rule: dict[str, Any], kind: str) -> str:
    name = rule.get(kind, _UNSET)
    return name if isinstance(name, str) else EVERYONE


def _rates(rule: dict[str, Any]) -> list[str]:
    return [f"{rule['rates'][name]:.15g}" if name in rule["rates"] else _UNSET for name in RATES]


quota.add_command(set_quota)
quota.add_command(remove_quota)
