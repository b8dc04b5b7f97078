"""Cost of logging an event."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale

from millstream.observe.logging.event_writer import EventWriter
from millstream.observe.logging.formatter import EventFormatter, JsonFormatter, PrettyFormatter

WAITING_BYTES_MAX = 1 << 30
"""So that no line is dropped, which would cost less."""


class _Silent(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Do nothing, so that only the work of `logging` is measured."""


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=100, quick=20_000, full=100_000)

    def bare() -> Figures:
        return {"bare": _time(_Silent(), count)}

    def ours(name: str, lines: EventFormatter) -> Figures:
        with (folder / "events").open("w") as stream:
            writer = EventWriter(stream, lines, waiting_bytes_max=WAITING_BYTES_MAX)
            try:
                return {name: _time(writer, count)}
            finally:
                writer.close()

    yield bare, lambda: ours("json", JsonFormatter()), lambda: ours("pretty", PrettyFormatter())


def _time(handler: logging.Handler, count: int) -> float:
    """Return the CPU of the thread that says something, for each line, in microseconds."""
    logger = logging.Logger("millstream.bench", logging.INFO)
    logger.addHandler(handler)
    started = time.thread_time()
    for number in range(count):
        logger.info("topic %s created", "orders", extra={"partitions": 3, "number": number})
    return (time.thread_time() - started) / count * 1e6


EVENTS = Experiment(
    title="an event",
    note=(
        "An event with two fields, to a file: the CPU of the thread that says it, and not of the"
        " one that writes it. The limit is Python's `logging` with a handler that does nothing."
    ),
    rows=(
        Row(name="an event, JSON", unit="µs", ours="json", limit="bare", limit_name="logging"),
        Row(name="an event, pretty", unit="µs", ours="pretty", limit="bare", limit_name="logging"),
    ),
    arms=_arms,
)
