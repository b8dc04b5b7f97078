"""`millstream serve`."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.support.node_options import configuration_of, node_options
from millstream.cli.support.options import one_line_errors
from millstream.config.loader import Configuration
from millstream.errors import MillstreamError
from millstream.observe.logging.event_writer import EventWriter, event_logging
from millstream.observe.logging.formatter import JsonFormatter

if TYPE_CHECKING:
    from millstream.node import Node

logger = logging.getLogger(__name__)


@click.command()
@node_options
@click.pass_context
def serve(context: click.Context, /, **options: Any) -> None:
    """Run a node until SIGTERM or Ctrl-C.

    Prints one line for each door and then `ready`, on standard output. Stopping answers what is
    under way, commits and seals; the next start then has nothing to check.

    Settings come from a file, from variables and from these options, of which the later win.
    `millstream config show` tells what comes of that.

    \b
    Exit status:
        0  stopped cleanly
        1  could not start, ended by an error, or did not stop in time
        2  wrong usage

    \b
    Example:
        millstream serve --data ./millstream-data --kafka 127.0.0.1:9092
    """  # noqa: D301 - click's mark for lines to leave as they are.
    configuration = configuration_of(options)
    with event_logging(configuration.node.logging) as events:
        is_clean = _run(configuration, events)
        logger.info("stopped", extra={"is_clean": is_clean})
    context.exit(0 if is_clean else 1)


def _run(configuration: Configuration, events: EventWriter) -> bool:
    """Run a node, and say what kept it from starting; returns whether it stopped cleanly."""
    for warning in configuration.warnings:
        logger.warning("%s", warning)
    try:
        # A node needs far more than the other commands do, which would all wait for it.
        from millstream.node import run  # noqa: PLC0415

        return run(configuration.node, partial(_started, configuration, events))
    except (MillstreamError, OSError) as error:
        if not isinstance(events.formatter, JsonFormatter):
            events.flush()
            with one_line_errors():
                raise
        logger.error("not started: %s", error)  # noqa: TRY400 - the message says it all.
    except Exception:
        logger.critical("the node ends by an error of its own", exc_info=True)
    return False


def _started(configuration: Configuration, events: EventWriter, server: Node) -> None:
    """Say what was found on this machine, and where the doors are."""
    from millstream.cli.support.start_report import report  # noqa: PLC0415

    report(configuration, events, server)
    announce(server)


def announce(server: Node) -> None:
    """Say where the doors are, on standard output, in lines that programs wait for."""
    click.echo(f"kafka {server.kafka}")
    click.echo(f"http http://{server.http}")
    click.echo("ready")
    sys.stdout.flush()
