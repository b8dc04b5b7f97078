"""Records that could not be read, as records of another topic.

A dead letter has the key, the value, the timestamp and the headers of its record, and two more
headers:

    millstream.origin   topic-partition-offset, such as `orders-3-1042`
    millstream.error    why it could not be read

One that is read and cannot be read again gets both once more; the last ones are the newest.
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
"""What a dead letter has; a batch needs them, and `offset`, to have any."""

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""As `records/arrow/decoder.py` has them."""


def dead_letters(
    origin: TopicPartition, records: pa.RecordBatch, reasons: pa.StringArray
) -> pa.RecordBatch:
    """Return `records` of one partition, which could not be read for these reasons, as letters."""
    lacking = [name for name in ("offset", *COLUMNS) if name not in records.schema.names]
    if lacking:
        raise InvalidRequest(
            f"dead letters need the columns {', '.join(lacking)}, which were not read"
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
    """Return headers with some more at the end of each row's, one value of each for every row."""
    headers = headers.cast(HEADERS)
    rows, count = len(headers), len(more)
    present = headers.flatten()
    sizes = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(sizes + count, out=ends[1:])
    # Where each header comes from: those that are there first, then the new ones, name by name.
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
