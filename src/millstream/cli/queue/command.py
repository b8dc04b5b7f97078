"""`millstream queue`."""

from __future__ import annotations

import click

from millstream.cli.support.command_group import CommandGroup

VERBS = {
    "create": "millstream.cli.queue.create:create",
    "delete": "millstream.cli.queue.delete:delete",
    "describe": "millstream.cli.queue.describe:describe",
    "jobs": "millstream.cli.queue.jobs:jobs",
    "list": "millstream.cli.queue.list:list_queues",
    "purge": "millstream.cli.queue.purge:purge",
    "put": "millstream.cli.queue.put:put",
    "redrive": "millstream.cli.queue.redrive:redrive",
    "set": "millstream.cli.queue.set:set_queue",
    "work": "millstream.cli.queue.work:work",
}


@click.group(cls=CommandGroup, verbs=VERBS)
def queue() -> None:
    """Create work queues, add jobs and process them.

    A queue is a topic whose records are jobs, so `millstream topic` works on it too.

    \b
    Example:
        millstream queue work mail -- ./send-mail
    """
