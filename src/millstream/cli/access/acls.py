"""`millstream access acls`: rules that allow and deny."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, printable, to_json
from millstream.protocols.http.access import OperationName

F = TypeVar("F", bound=Callable[..., Any])

ACLS_PATH = "/v1/access/acls"

OPERATIONS: tuple[str, ...] = get_args(OperationName)

COLUMNS = ("permission", "user", "operation", "resource_type", "resource", "pattern", "host")


@click.group()
def acls() -> None:
    """List, create and delete the rules that say who may do what.

    \b
    Example:
        millstream access acls allow alice read --topic orders
    """


def rule_options(command: F) -> F:
    """Add the arguments and options that describe a rule."""
    options = (
        click.argument("user"),
        click.argument("operation", type=click.Choice(OPERATIONS)),
        click.option("--topic", metavar="NAME", help="Topic, or * for all."),
        click.option("--group", metavar="NAME", help="Group or queue, or * for all."),
        click.option("--transactional-id", metavar="NAME", help="Transactional id, or * for all."),
        click.option("--cluster", "is_cluster", is_flag=True, help="The cluster itself."),
        click.option(
            "--prefixed", "is_prefixed", is_flag=True, help="All names that begin with the name."
        ),
        click.option(
            "--host", default="*", show_default=True, help="IP address from which it applies."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _rule(given: dict[str, Any], permission: str) -> dict[str, Any]:
    """Return a rule in the form of the HTTP API."""
    kinds = ("topic", "group", "transactional_id")
    named = [(kind, given[kind]) for kind in kinds if given[kind] is not None]
    if given["is_cluster"]:
        named.append(("cluster", "kafka-cluster"))
    if len(named) != 1:
        raise click.UsageError(
            "one of --topic, --group, --transactional-id and --cluster is required"
        )
    ((kind, name),) = named
    return {
        "user": given["user"],
        "operation": given["operation"],
        "resource_type": kind,
        "resource": name,
        "pattern": "prefixed" if given["is_prefixed"] else "literal",
        "permission": permission,
        "host": given["host"],
    }


@acls.command()
@rule_options
@server_option
@json_option
def allow(*, server: str, as_json: bool, **given: Any) -> None:
    """Allow a user an operation. `*` as the user is everyone who has logged in.

    \b
    Exit status:
        0  allowed, now or before
        1  not changed
        2  wrong usage

    \b
    Example:
        millstream access acls allow alice write --topic team- --prefixed
    """
    _create(server, _rule(given, "allow"), as_json=as_json)


@acls.command()
@rule_options
@server_option
@json_option
def deny(*, server: str, as_json: bool, **given: Any) -> None:
    """Deny a user an operation, whatever other rules allow.

    \b
    Exit status:
        0  denied, now or before
        1  not changed
        2  wrong usage

    \b
    Example:
        millstream access acls deny '*' read --topic payroll
    """
    _create(server, _rule(given, "deny"), as_json=as_json)


def _create(server: str, rule: dict[str, Any], *, as_json: bool) -> None:
    with connected(server) as node:
        answer = node.tell("POST", ACLS_PATH, rule, field="user", is_repeatable=True).body
    click.echo(to_json(answer) if as_json else printable(_words(rule)))


def _words(rule: dict[str, Any]) -> str:
    name = "" if rule["resource_type"] == "cluster" else f" {rule['resource']}"
    more = "*" if rule["pattern"] == "prefixed" else ""
    verb = "may" if rule["permission"] == "allow" else "may not"
    return f"{rule['user']} {verb} {rule['operation']} {rule['resource_type']}{name}{more}"


@acls.command("remove")
@click.option("--deny", "is_deny", is_flag=True, help="Remove a rule that denies.")
@rule_options
@server_option
@json_option
def remove(*, server: str, is_deny: bool, as_json: bool, **given: Any) -> None:
    """Remove a rule, which is named as it was created.

    \b
    Exit status:
        0  there is no such rule any more
        1  not changed
        2  wrong usage

    \b
    Example:
        millstream access acls remove alice write --topic team- --prefixed
    """
    rule = _rule(given, "deny" if is_deny else "allow")
    with connected(server) as node:
        node.ask("DELETE", ACLS_PATH, rule)
    click.echo(to_json({"removed": rule}) if as_json else printable(f"removed: {_words(rule)}"))


@acls.command("list")
@server_option
@json_option
def list_acls(server: str, *, as_json: bool) -> None:
    """List all rules.

    \b
    Exit status:
        0  listed
        1  you may not list them, or no node answers
        2  wrong usage

    \b
    Example:
        millstream access acls list --json
    """
    with connected(server) as node:
        answer = node.ask("GET", ACLS_PATH, field="acls")
    if as_json:
        click.echo(to_json(answer, indent=2))
        return
    rows = [[str(rule[name]) for name in COLUMNS] for rule in answer["acls"]]
    print_table([name.replace("_", " ").upper() for name in COLUMNS], rows)
