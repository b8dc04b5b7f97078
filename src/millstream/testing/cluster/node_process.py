"""A node whose disk and clock can be disturbed: `python -m ... node_process serve OPTIONS`.

The same as `millstream serve`, but it takes faults from standard input, one line of
`node_faults.encode_faults` each, and answers each with a line. `RunningNode` starts it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import click

from millstream.cli.serve import run_node
from millstream.cli.support.node_options import configuration_of, node_options
from millstream.observe.logging.event_writer import event_logging
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.testing.cluster.node_faults import (
    APPLIED,
    CurrentFaults,
    SteppedClock,
    decode_faults,
)


def take_faults(current: CurrentFaults) -> None:
    """Apply the faults that arrive on standard input until it ends."""
    for line in sys.stdin:
        current.set(decode_faults(line))
        sys.stdout.write(f"{APPLIED}\n")
        sys.stdout.flush()


@click.group()
def main() -> None:
    """Run a node whose disk and clock can be disturbed."""


@main.command()
@node_options
@click.pass_context
def serve(context: click.Context, /, **options: Any) -> None:
    """Run a node, as `millstream serve` does."""
    configuration = configuration_of(options)
    current = CurrentFaults()
    threading.Thread(target=take_faults, args=(current,), daemon=True).start()
    with event_logging(configuration.node.logging) as events:
        status = run_node(
            configuration,
            events,
            filesystem=current.filesystem(OsFilesystem()),
            clock=SteppedClock(current),
        )
    context.exit(status)


if __name__ == "__main__":
    main()
