"""What Spark says when a job fails, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.errors import SparkFailed


@contextmanager
def one_line_failures() -> Iterator[None]:
    """Raise `SparkFailed` in place of what Spark raises, with the line that says what it was."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - an extra, and slow.
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise SparkFailed(_line(str(error)) or type(error).__name__) from error


def _line(text: str) -> str:
    """Return what a job died of: the end of a Python traceback, or else how it begins."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    within = [line for line in lines if _is_error(line)]
    return within[-1] if within else next(iter(lines), "")


def _is_error(line: str) -> bool:
    """Whether a line is how Python names an error at the end of a traceback."""
    name, colon, _ = line.partition(": ")
    return bool(colon) and name.replace(".", "").isidentifier() and not name.startswith("org.")
