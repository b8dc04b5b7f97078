"""`millstream cluster adopt`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.support.node_options import configuration_of, node_options
from millstream.cli.support.options import json_option, one_line_errors
from millstream.cli.support.output import printable, to_json
from millstream.config.schema import NodeConfig
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.inspect.catalog import check_directory

if TYPE_CHECKING:
    from millstream.cluster.adoption.adoption import AdoptionReport


@click.command()
@click.option(
    "--dry-run",
    "is_dry_run",
    is_flag=True,
    help="Check the directory and etcd, print what would be adopted, and adopt nothing.",
)
@json_option
@node_options
def adopt(*, is_dry_run: bool, as_json: bool, **options: Any) -> None:
    """Make the data directory of a lone node that of the first node of a cluster.

    Stop the node first. Copies its topics, settings, quotas and queues to etcd, and distributes its
    groups, transactions, queues and streams over the internal partitions of a cluster. Records stay
    where they are. The cluster in etcd must be empty. Then start the node with the same settings,
    start other nodes with empty directories, and give topics more replicas with `millstream
    cluster reassign --replicas`.

    An attempt that fails or is interrupted is repeated with the same command. Until it has copied
    everything, the directory is still that of a lone node.

    \b
    Exit status:
        0  adopted, now or before
        1  not adopted; the message says why
        2  wrong usage

    \b
    Example:
        millstream cluster adopt --data ./millstream-data --node-id 1 --etcd http://127.0.0.1:2379
    """
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message)s")
    node = configuration_of(options).node
    if not node.cluster.etcd:
        raise click.UsageError("--etcd is needed: the addresses of the cluster's etcd")
    with one_line_errors():
        check_directory(OsFilesystem(), node.data)
        report = asyncio.run(_adopt(node, is_dry_run=is_dry_run))
    if as_json:
        click.echo(to_json(None if report is None else dataclasses.asdict(report), indent=2))
    elif report is None:
        click.echo(printable(f"{node.data} has been adopted."))
    else:
        click.echo(printable(_summary(report, is_dry_run=is_dry_run)))


async def _adopt(config: NodeConfig, *, is_dry_run: bool) -> AdoptionReport | None:
    # The broker takes far longer to load than other commands take to run.
    from millstream.cluster.adoption.adoption import Adoption  # noqa: PLC0415
    from millstream.cluster.control.node_identity import is_cluster_directory  # noqa: PLC0415
    from millstream.metadata.etcd.etcd_metadata import EtcdMetadata  # noqa: PLC0415

    # A lone node has seen nothing of etcd, except by an earlier attempt that does not count.
    is_alone = not is_cluster_directory(OsFilesystem(), config.data)
    metadata = await EtcdMetadata.open_configured(
        config.cluster, config.data, is_loss_accepted=is_alone
    )
    try:
        return await Adoption(config, metadata).run(is_dry_run=is_dry_run)
    finally:
        await metadata.close()


def _summary(report: AdoptionReport, *, is_dry_run: bool) -> str:
    state = report.state
    words = "Would adopt" if is_dry_run else "Adopted"
    return (
        f"{words} as node {report.node_id} of cluster {report.cluster}: {report.topics} topics with"
        f" {report.partitions} partitions, {state.groups} groups, {state.transactional_ids}"
        f" transactional ids, {state.queues} queues, {state.streams} streams; {report.keys} keys in"
        " etcd."
    )
