"""`millstream queue`: make work queues, put jobs in, look at them, work them off."""

from __future__ import annotations

import click

from millstream.cli.nouns import Noun

VERBS = {
    "create": "millstream.cli.queue_create:create",
    "delete": "millstream.cli.queue_delete:delete",
    "describe": "millstream.cli.queue_describe:describe",
    "jobs": "millstream.cli.queue_jobs:jobs",
    "list": "millstream.cli.queue_list:list_queues",
    "put": "millstream.cli.queue_put:put",
    "set": "millstream.cli.queue_set:set_queue",
    "work": "millstream.cli.queue_work:work",
}


@click.group(cls=Noun, verbs=VERBS)
def queue() -> None:
    """Hand out jobs, each to one worker at a time.

    A queue is a topic whose records are jobs, so `millstream topic` works on it as well.

    \b
    Example:
        millstream queue work mail -- ./send-mail
    """  # noqa: D301 - click's mark for lines to leave as they are.
