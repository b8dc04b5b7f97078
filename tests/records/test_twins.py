"""Which of two twins is called: the plain one, until the compiler is worth its loading."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millstream.records import (
    columns,
    encoding,
    key_memory,
    key_table,
    partitioner,
    sifting,
    twins,
)
from millstream.records.twins import Twins


def plain():
    return "plain"


def compiled():
    return "compiled"


def missing():
    raise ImportError("No module named 'numba'")


def test_the_plain_one_is_called_until_many_records_have_come(monkeypatch):
    monkeypatch.setattr(twins, "_LOAD_RECORDS", 100)
    pair = Twins(plain, lambda: compiled)
    assert [pair.choose(33)() for _ in range(5)] == ["plain"] * 3 + ["compiled"] * 2


def test_few_records_never_need_the_compiled_one(monkeypatch):
    monkeypatch.setattr(twins, "_LOAD_RECORDS", 0)
    pair = Twins(plain, lambda: compiled)
    assert pair.choose(15)() == "plain"
    assert pair.choose(16)() == "compiled"
    assert pair.choose(15)() == "plain"


def test_the_plain_one_is_called_for_good_where_numba_is_missing():
    pair = Twins(plain, missing)
    assert pair.choose(10**9)() == "plain"
    assert pair.compiled() == "plain"


@pytest.mark.parametrize(
    "pair",
    [
        sifting._RESTS_OF,
        key_table._NOTE,
        key_memory._REHASH,
        columns._DECODE,
        encoding._ENCODE,
        partitioner._PARTITIONS_OF,
        partitioner._ROWS_BY_PARTITION,
    ],
    ids=["sift", "note", "rehash", "decode", "encode", "partitions", "rows"],
)
def test_all_that_has_a_twin_has_one_here(pair):
    assert pair.compiled is not pair.plain


def test_nothing_of_numba_is_loaded_before_it_is_needed():
    code = (
        "import sys; import millstream.records.sifting, millstream.records.key_table;"
        "import millstream.records.columns, millstream.records.partitioner;"
        "print([name for name in ('numba', 'numpy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
