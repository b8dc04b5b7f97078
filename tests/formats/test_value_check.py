"""Checks of batches: whether their values can be read, and when that may be done on the loop."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millstream.errors import CorruptBatch, InvalidConfig
from millstream.formats.value_check import FormatCheck
from millstream.records.build import build_batch
from millstream.records.compression import OversizedBody
from millstream.records.record import Record

SIZE_MAX = 1_000_000


def batch_of(*values: bytes | None) -> bytes:
    return build_batch([Record(value) for value in values], now_ms=1_700_000_000_000)


def test_the_first_batch_is_not_for_the_loop() -> None:
    check = FormatCheck("json", "id INT")
    assert not check.is_fast
    assert check.faults(batch_of(b'{"id": 1}', None), size_max=SIZE_MAX, limit=10) == []
    assert check.is_fast


def test_as_many_faults_as_asked_for_are_returned() -> None:
    check = FormatCheck("json", "id INT")
    values = [b'{"id": 1}', b"x", b"y", b"z"]
    found = check.faults(batch_of(*values), size_max=SIZE_MAX, limit=2)
    assert [index for index, _ in found] == [1, 2]


def test_a_batch_that_cannot_be_opened_is_no_fault_of_a_value() -> None:
    check = FormatCheck("json", "id INT")
    whole = batch_of(b'{"id": 1}')
    with pytest.raises(CorruptBatch):
        check.faults(whole[:61] + b"\xff" * (len(whole) - 61), size_max=SIZE_MAX, limit=10)
    with pytest.raises(OversizedBody):
        check.faults(batch_of(b" " * 500), size_max=100, limit=10)


def test_a_schema_that_cannot_be_used_is_named_at_each_batch() -> None:
    check = FormatCheck("avro", '{"type": "record", "name": "r", "fields": []}')
    for _ in range(2):
        with pytest.raises(InvalidConfig, match="at least 1 field"):
            check.faults(batch_of(b""), size_max=SIZE_MAX, limit=10)


def test_a_node_without_checked_topics_loads_no_formats() -> None:
    code = (
        "import sys, millstream.node, millstream.formats.value_check as checks;"
        "checks.FormatCheck('json', '');"
        "assert not {'numba', 'pyarrow', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
