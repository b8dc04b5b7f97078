"""Lists of processors: read, written, and dealt out to processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.cpus import CPU_MAX, deal_cpus, format_cpus, parse_cpus
from millstream.config.keys import KEYS
from millstream.config.loader import ConfigurationError, load_configuration
from millstream.config.values import parse_value

CPUS = st.sets(st.integers(0, CPU_MAX), min_size=1, max_size=40).map(sorted)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-3,6", (0, 1, 2, 3, 6)), (" 6 , 0-1 ", (0, 1, 6)), ("2,2,1-2", (1, 2))],
)
def test_a_list_names_processors_and_ranges_of_them(text: str, cpus: tuple[int, ...]):
    assert parse_cpus(text) == cpus


@given(CPUS)
def test_a_list_that_was_written_is_read_as_the_same_processors(cpus: list[int]):
    assert parse_cpus(format_cpus(cpus)) == tuple(cpus)


def test_neighbours_are_written_as_a_range():
    assert format_cpus({6, 0, 2, 1}) == "0-2,6"
    assert format_cpus(()) == ""


@pytest.mark.parametrize("text", ["a", "3-1", "0,,1", "-1", "0-", "8192", "1.5", "0 1", "99999"])
def test_a_list_that_is_none_is_refused_with_what_is_allowed(text: str):
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(environment={}, flags={"node.cpus": text})
    assert str(refused.value) == (
        "node.cpus must be processors and ranges of them, such as 0-3,6, with numbers from 0 to"
        f" 8191, or none, got {text!r} (--cpus)"
    )


def test_a_file_may_name_one_processor_by_its_number():
    assert parse_value(KEYS["node.cpus"], 3) == (3,)


@pytest.mark.parametrize("given", [True, 1.5, [0, 1]])
def test_a_file_may_not_name_processors_in_another_way(given):
    with pytest.raises(ValueError, match="processor"):
        parse_value(KEYS["node.cpus"], given)


@given(CPUS, st.integers(1, 64))
def test_every_process_gets_a_processor_and_none_is_left_over(cpus: list[int], processes: int):
    dealt = deal_cpus(cpus, processes)
    assert len(dealt) == processes
    assert all(dealt)
    if len(cpus) >= processes:
        assert [cpu for share in dealt for cpu in share] == cpus, "in order, each one once"
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    else:
        assert all(len(share) == 1 for share in dealt)
        assert {cpu for share in dealt for cpu in share} == set(cpus)


def test_without_processors_no_process_is_pinned():
    assert deal_cpus((), 3) == [(), (), ()]
