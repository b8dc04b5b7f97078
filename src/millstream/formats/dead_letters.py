"""Dead letters: bad records as records of another topic.

A dead letter has the key, value, timestamp and headers of its record, and two more headers:

    millstream.origin   topic-partition-offset, such as `orders-3-1042`
    millstream.error    why the value could not be decoded

If a dead letter is read and is bad again, it gets both headers once more; the last are the newest.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InvalidRequest
from millstream.records.topic_partition import TopicPartition

ORIGIN_HEADER = "millstream.origin"
ERROR_HEADER = "millstream.error"

COLUMNS = ("timestamp", "key", "value", "headers")
"""Columns of a dead letter. A batch needs them, and `offset`, to produce dead letters."""

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""Type of the column `headers`, as in `records/arrow/decoder.py`."""


def dead_letters(
    origin: TopicPartition, records: pa.RecordBatch, reasons: pa.StringArray
) -> pa.RecordBatch:
    """Return bad records of one partition as dead letters, with the reason for each."""
    missing = [name for name in ("offset", *COLUMNS) if name not in records.schema.names]
    if missing:
        raise InvalidRequest(
            f"dead letters require the columns {', '.join(missing)}, which were not read"
        )
    offsets = records.column("offset").cast(pa.string())
    origins = pc.binary_join_element_wise(f"{origin}-", offsets, "").cast(pa.binary())
    headers = with_headers(
        records.column("headers"),
        {ORIGIN_HEADER: origins, ERROR_HEADER: reasons.cast(pa.binary())},
    )
    columns = [records.column(name) for name in COLUMNS[:-1]]
    return pa.RecordBatch.from_arrays([*columns, headers], names=list(COLUMNS))


def with_headers(headers: pa.ListArray, more: dict[str, pa.BinaryArray]) -> pa.ListArray:
    """Return `headers` with more headers appended to each row, one value of each per row."""
    headers = headers.cast(HEADERS)
    rows, count = len(headers), len(more)
    present = headers.flatten()
    sizes = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(sizes + count, out=ends[1:])
    # For each header of the result, its index in the existing headers followed by the new ones
    # (all rows of the first new header, then all rows of the second, and so on).
    sources = np.empty(len(present) + rows * count, np.int64)
    is_new = np.zeros(sources.size, np.bool_)
    for number in range(count):
        places = ends[1:] - count + number
        sources[places] = len(present) + number * rows + np.arange(rows)
        is_new[places] = True
    sources[~is_new] = np.arange(len(present))
    keys = [present.field(0), *(pa.repeat(pa.scalar(name), rows) for name in more)]
    values = [present.field(1), *more.values()]
    pairs = pa.StructArray.from_arrays(
        [pa.concat_arrays(part).take(pa.array(sources)) for part in (keys, values)],
        fields=list(HEADERS.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(ends), pairs)
