"""Which of two twins is called: the plain one, until the compiler is worth its loading."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millstream.records.arrow import decoder as columns
from millstream.records.arrow import encoder as encoding
from millstream.records.arrow import partitioner
from millstream.records.filter import batch_filter as sifting
from millstream.records.filter.keys import memory as key_memory
from millstream.records.filter.keys import table as key_table
from millstream.records.kernels import dispatch as twins
from millstream.records.kernels.dispatch import KernelDispatch


def reference():
    return "plain"


def compiled():
    return "compiled"


def missing():
    raise ImportError("No module named 'numba'")


def test_the_plain_one_is_called_until_many_records_have_come(monkeypatch):
    monkeypatch.setattr(twins, "_LOAD_RECORDS", 100)
    pair = KernelDispatch(reference, lambda: compiled)
    assert [pair.choose(33)() for _ in range(5)] == ["plain"] * 3 + ["compiled"] * 2


def test_few_records_never_need_the_compiled_one(monkeypatch):
    monkeypatch.setattr(twins, "_LOAD_RECORDS", 0)
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
        sifting._REMAINING_OF,
        key_table._INSERT_KEYS,
        key_memory._REHASH,
        columns._DECODE,
        encoding._ENCODE,
        partitioner._PARTITIONS_OF,
        partitioner._ROWS_BY_PARTITION,
    ],
    ids=["sift", "note", "rehash", "decode", "encode", "partitions", "rows"],
)
def test_all_that_has_a_twin_has_one_here(pair):
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
