"""`millstream access init`: the first administrator."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import click

from millstream.cli.support.node_options import configuration_of, node_options
from millstream.cli.support.options import json_option, one_line_errors
from millstream.cli.support.output import to_json
from millstream.config.schema import AccessConfig, NodeConfig


@click.command()
@click.option(
    "--user",
    "name",
    metavar="NAME",
    default="admin",
    show_default=True,
    help="Name of the user who gets all rights.",
)
@json_option
@node_options
def init(*, name: str, as_json: bool, **options: Any) -> None:
    """Give one user all rights, and print a token of that user.

    Stop a lone node first: the rules are written to its data directory. In a cluster they are
    written to etcd, and nodes may run. Then start the node with `access.enabled = true`. The token
    is printed to standard output this one time; everything else is made with it.

    The command can be repeated, for example after the last token was lost: each time it prints a
    new token.

    \b
    Exit status:
        0  created
        1  not created; the message says why
        2  wrong usage

    \b
    Example:
        millstream access init --data ./millstream-data > admin.token
    """
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message)s")
    node = configuration_of(options).node
    with one_line_errors():
        token_id, text = asyncio.run(_initialize(node, name))
    if as_json:
        click.echo(to_json({"user": name, "id": token_id, "token": text}))
        return
    click.echo(text)
    click.echo(f"User:{name} may do everything. Start nodes with access.enabled = true.", err=True)


async def _initialize(config: NodeConfig, name: str) -> tuple[str, str]:
    """Store the rules of an administrator; return the id of a token and its text."""
    # The broker takes far longer to load than other commands take to run.
    from millstream.broker.access.access import Access  # noqa: PLC0415
    from millstream.broker.broker import Broker  # noqa: PLC0415
    from millstream.broker.loop_timers import LoopTimers  # noqa: PLC0415
    from millstream.clock import SystemClock  # noqa: PLC0415

    if not config.cluster.etcd:
        enabled = AccessConfig(enabled=True)
        broker = await Broker.open(config.data, config=config.broker, access_config=enabled)
        try:
            assert broker.access is not None
            return await _create(broker.access, name)
        finally:
            await broker.close()
    from millstream.metadata.etcd.etcd_metadata import EtcdMetadata  # noqa: PLC0415

    cluster = config.cluster
    metadata = await EtcdMetadata.open(
        cluster.etcd,
        cluster.name,
        timeout_ms=cluster.etcd_timeout_ms,
        user=cluster.etcd_user,
        password_file=cluster.etcd_password_file,
        ca_file=cluster.etcd_ca_file,
        cert_file=cluster.etcd_cert_file,
        key_file=cluster.etcd_key_file,
    )
    access = Access(metadata, clock=SystemClock(), timers=LoopTimers())
    try:
        await access.open()
        return await _create(access, name)
    finally:
        access.close()
        await metadata.close()


async def _create(access: Any, name: str) -> tuple[str, str]:
    from millstream.broker.access.acls import Acl, Permission, ResourcePattern  # noqa: PLC0415
    from millstream.broker.access.caller import Caller  # noqa: PLC0415
    from millstream.broker.access.principal import user  # noqa: PLC0415
    from millstream.broker.access.resources import (  # noqa: PLC0415
        CLUSTER_NAME,
        NAMED,
        Operation,
        ResourceType,
    )

    principal = user(name)
    by = Caller(principal, "localhost")
    patterns = [ResourcePattern(kind, "*") for kind in sorted(NAMED)]
    patterns.append(ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME))
    for pattern in patterns:
        acl = Acl(pattern, principal, "*", Operation.ALL, Permission.ALLOW)
        await access.create_acl(acl, by=by)
    token, text = await access.create_token(principal, by=by, note="made by access init")
    return token.id, text
