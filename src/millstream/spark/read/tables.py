"""The Arrow schema of the rows that a task returns."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark expects for `schema`."""
    return to_arrow_schema(schema, timezone="UTC")
