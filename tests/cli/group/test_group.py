"""`millstream group`: show, reset and delete the offsets of groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer

import millstream
from millstream.testing.broker import RunningBroker
from tests.cli.calls import commit
from tests.cli.commands import is_one_line, run, told, type_in
from tests.servers.kafka.client import RawClient


@pytest.fixture(autouse=True)
def topic(node: RunningBroker) -> None:
    with millstream.Client(node.url) as client:
        client.create_topic("orders")
        for number in range(5):
            client.append("orders", number, timestamp_ms=1_763_240_000_000 + number)


def committed(node: RunningBroker, group: str, offset: int) -> None:
    with RawClient(node.bootstrap) as client:
        commit(client, group, "orders", offset)


@contextmanager
def member(node: RunningBroker, group: str) -> Iterator[None]:
    """Run a consumer in the group."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe(["orders"])
        while consumer.poll(0.1) is None:
            pass
        yield
    finally:
        consumer.close()


def offset(node: RunningBroker, group: str) -> int:
    (found,) = told("group", "describe", group, server=node.url)["offsets"]
    return int(found["committed"])


def test_groups_are_listed_with_how_far_they_are_behind(node: RunningBroker) -> None:
    empty = run("group", "list", server=node.url)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "There are no groups" in empty.stderr
    committed(node, "billing", 3)
    committed(node, "bad\x1b[2J", 5)
    head, bad, billing = run("group", "list", server=node.url).stdout.splitlines()
    assert head.split() == ["GROUP", "KIND", "STATE", "MEMBERS", "PARTITIONS", "LAG"]
    assert billing.split() == ["billing", "classic", "empty", "0", "1", "2"]
    assert bad.startswith(r"bad\x1b[2J")
    assert [one["lag"] for one in told("group", "list", server=node.url)["groups"]] == [0, 2]


def test_a_group_is_shown_with_its_offsets_and_its_members(node: RunningBroker) -> None:
    committed(node, "billing", 3)
    first, head, row = run("group", "describe", "billing", server=node.url).stdout.splitlines()
    assert first == "billing: classic, empty, 0 members, lag 2"
    assert head.split() == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]
    assert row.split() == ["orders", "0", "3", "5", "2", "-"]
    with member(node, "billing"):
        words = ("group", "describe", "billing", "--members")
        first, head, row = run(*words, server=node.url).stdout.splitlines()
        assert first == "billing: classic, stable, 1 member, lag 2"
        assert head.split() == ["MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS"]
        assert row.split()[1:] == ["-", "reader", "127.0.0.1", "orders:0"]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("earliest", 0),
        ("latest", 5),
        ("2", 2),
        ("2025-11-15T20:53:20.003Z", 3),
        ("2025-11-15T20:53:20.003", 3),
        ("2025-11-15T21:53:20.004+01:00", 4),
        ("2030-01-01", 5),
    ],
)
def test_a_group_goes_on_where_it_is_told_to(
    node: RunningBroker, place: str, expected: int
) -> None:
    committed(node, "billing", 1)
    words = ("group", "reset", "billing", "--topic", "orders", "--to", place, "--yes")
    result = run(*words, server=node.url)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split() == [
        "orders", "0", str(expected), "5", str(5 - expected)
    ]  # fmt: skip
    assert offset(node, "billing") == expected


def test_one_partition_is_reset_and_a_group_is_made_by_that(node: RunningBroker) -> None:
    run("topic", "set", "orders", "partitions=2", server=node.url)
    words = ("group", "reset", "new", "--topic", "orders", "--partition", 0, "--to", 4, "--yes")
    (found,) = told(*words, server=node.url)["offsets"]
    assert (found["partition"], found["committed"]) == (0, 4)
    assert offset(node, "new") == 4


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--topic", "orders", "--to", "soon"), 2, "an ISO 8601 time"),
        (("--topic", "orders", "--to", "-1"), 2, "an ISO 8601 time"),
        (("--topic", "orders"), 2, "--to"),
        (("--to", "latest"), 2, "--topic"),
        (("--topic", "order", "--to", "latest"), 1, "Did you mean orders?"),
        (("--topic", "orders", "--partition", "7", "--to", "latest"), 1, "partition"),
        (("--topic", "orders", "--to", "99"), 1, "99"),
    ],
    ids=str,
)
def test_a_place_that_is_none_is_named(
    node: RunningBroker, words: tuple[str, ...], status: int, said: str
) -> None:
    result = run("group", "reset", "billing", *words, "--yes", server=node.url)
    assert (result.exit_code, result.stdout) == (status, "")
    assert said in result.stderr


def test_a_group_with_members_is_left_alone(node: RunningBroker) -> None:
    with member(node, "billing"):
        for words in (("reset", "billing", "--topic", "orders", "--to", "latest"),
                      ("delete", "billing")):  # fmt: skip
            result = run("group", *words, "--yes", server=node.url)
            assert result.exit_code == 1
            assert is_one_line(result.stderr)
            assert "members" in result.stderr


@pytest.mark.parametrize("name", ["billing", "a/b", "a b", "ü", "%2f"])
def test_a_group_is_forgotten_whatever_it_is_called(node: RunningBroker, name: str) -> None:
    committed(node, name, 1)
    assert offset(node, name) == 1
    assert told("group", "delete", name, "--yes", server=node.url) == {"deleted": name}
    gone = run("group", "describe", name, server=node.url)
    assert gone.exit_code == 1
    assert is_one_line(gone.stderr)


def test_a_group_that_was_meant_is_named(node: RunningBroker) -> None:
    committed(node, "billing", 1)
    result = run("group", "describe", "biling", server=node.url)
    assert result.stderr.endswith("Did you mean billing?\n")


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("delete", "billing"), "Delete the group billing and its committed offsets?"),
        (
            ("reset", "billing", "--topic", "orders", "--to", "latest"),
            "Reset the offsets of billing in orders?",
        ),
    ],
    ids=["delete", "reset"],
)
def test_it_is_asked_first(node: RunningBroker, words: tuple[str, ...], question: str) -> None:
    committed(node, "billing", 1)
    assert run("group", *words, server=node.url).exit_code == 2
    status, said = type_in("group", *words, "--server", node.url, typed="n\n")
    assert status == 1
    assert question in said
    assert offset(node, "billing") == 1
