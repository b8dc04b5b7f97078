"""Dispatch calls the plain function until loading the compiler is worthwhile."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millstream.records.arrow import decoder, encoder, partitioner
from millstream.records.filter import batch_filter
from millstream.records.filter.keys import memory, table
from millstream.records.kernels import dispatch
from millstream.records.kernels.dispatch import KernelDispatch


def reference():
    return "plain"


def compiled():
    return "compiled"


def missing():
    raise ImportError("No module named 'numba'")


def test_the_plain_one_is_called_until_many_records_have_come(monkeypatch):
    monkeypatch.setattr(dispatch, "_LOAD_RECORDS", 100)
    pair = KernelDispatch(reference, lambda: compiled)
    assert [pair.choose(33)() for _ in range(5)] == ["plain"] * 3 + ["compiled"] * 2


def test_few_records_never_need_the_compiled_one(monkeypatch):
    monkeypatch.setattr(dispatch, "_LOAD_RECORDS", 0)
    pair = KernelDispatch(reference, lambda: compiled)
    assert pair.choose(15)() == "plain"
    assert pair.choose(16)() == "compiled"
    assert pair.choose(15)() == "plain"


def test_the_plain_one_is_called_for_good_where_numba_is_missing():
    pair = KernelDispatch(reference, missing)
    assert pair.choose(10**9)() == "plain"
    assert pair.compiled() == "plain"


@pytest.mark.parametrize(
    "pair",
    [
        batch_filter._REMAINING_OF,
        table._INSERT_KEYS,
        memory._REHASH,
        decoder._DECODE,
        encoder._ENCODE,
        partitioner._PARTITIONS_OF,
        partitioner._ROWS_BY_PARTITION,
    ],
    ids=["filter", "insert", "rehash", "decode", "encode", "partitions", "rows"],
)
def test_every_dispatch_has_a_compiled_version(pair):
    assert pair.compiled is not pair.reference


def test_nothing_of_numba_is_loaded_before_it_is_needed():
    code = (
        "import sys; import millstream.records.filter.batch_filter;"
        "import millstream.records.filter.keys.table;"
        "import millstream.records.arrow.decoder, millstream.records.arrow.partitioner;"
        "print([name for name in ('numba', 'numpy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
