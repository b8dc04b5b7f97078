"""One-line messages for failed Spark jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.errors import SparkFailed


@contextmanager
def one_line_failures() -> Iterator[None]:
    """Convert Spark's exceptions to `SparkFailed` with the line that names the cause."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - optional, and slow to import.
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise SparkFailed(_summary(str(error)) or type(error).__name__) from error


def _summary(text: str) -> str:
    """Return the cause of a failure: the last error of a Python traceback, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _is_error(line)]
    return errors[-1] if errors else next(iter(lines), "")


def _is_error(line: str) -> bool:
    """Whether a line has the form of the last line of a Python traceback."""
    name, colon, _ = line.partition(": ")
    return bool(colon) and name.replace(".", "").isidentifier() and not name.startswith("org.")
