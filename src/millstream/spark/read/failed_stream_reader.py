"""Stream reader of a query that cannot start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Never

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from millstream.errors import MillstreamError


class FailedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error at the first use.

    If the reader of a stream cannot be created, PySpark 4.3 reports an `UnboundLocalError` of its
    own instead of the reason.
    """

    def __init__(self, error: MillstreamError) -> None:
        self._error = error

    def _fail(self) -> Never:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as below.
        self._fail()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        self._fail()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        self._fail()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        self._fail()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002
        self._fail()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._fail()
