"""`millstream topic search`: the node searches, the command prints what matches."""

from __future__ import annotations

import pytest

import millstream
from millstream.testing.broker import RunningBroker
from tests.cli.commands import is_one_line, lines_of, run


@pytest.fixture
def stocked(node: RunningBroker) -> RunningBroker:
    with millstream.Client(node.url) as client:
        for number in range(12):
            value = {"n": number, "customer": {"country": "DE" if number % 3 else "FR"}}
            client.append("orders", value, key=f"k{number % 4}", timestamp_ms=1_000 * number)
    return node


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), list(range(12))),
        (("--key", "k1"), [1, 5, 9]),
        (("--key-prefix", "k", "--limit", 3), [0, 1, 2]),
        (("--field", "customer.country", "--value", "FR"), [0, 3, 6, 9]),
        (("--text", '"n":11'), [11]),
        (("--from", "1970-01-01T00:00:09Z"), [9, 10, 11]),
        (("--to", "1970-01-01T00:00:02"), [0, 1]),
        (("--partition", 0, "--field", "n", "--value", 4), [4]),
        (("--field", "nothing"), []),
    ],
)
def test_records_that_match_are_printed(
    stocked: RunningBroker, options: tuple[object, ...], found: list[int]
) -> None:
    result = run("topic", "search", "orders", "--json", *options, server=stocked.url)
    assert result.exit_code == 0, result.output
    assert [line["value"]["n"] for line in lines_of(result.stdout)] == found


def test_people_get_a_line_for_each_record(stocked: RunningBroker) -> None:
    result = run("topic", "search", "orders", "--key", "k2", "--limit", 1, server=stocked.url)
    [line] = result.stdout.splitlines()
    assert line.startswith("0:2  1970-01-01")
    assert line.endswith('k2  {"n": 2, "customer": {"country": "DE"}}')


def test_what_cannot_be_searched_is_said(stocked: RunningBroker) -> None:
    for options in (("--value", "x"), ("--field", "a..b")):
        result = run("topic", "search", "orders", *options, server=stocked.url)
        assert result.exit_code == 1
        assert is_one_line(result.stderr)
    assert run("topic", "search", "nothing", server=stocked.url).exit_code == 1
    wrong = run("topic", "search", "orders", "--from", "noon", server=stocked.url)
    assert wrong.exit_code == 2
    assert "must be an ISO 8601 time, got 'noon'" in wrong.stderr
