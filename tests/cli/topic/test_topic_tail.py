"""`millstream topic tail`: start position, output and exit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import millstream
from millstream import NewRecord
from millstream.testing.broker import RunningBroker
from tests.cli.commands import is_one_line, lines_of, on_a_terminal, run, started
from tests.cli.nodes import PATIENCE


@pytest.fixture
def client(node: RunningBroker) -> Iterator[millstream.Client]:
    with millstream.Client(node.url) as client:
        yield client


def numbers(node: RunningBroker, *options: object, topic: str = "orders") -> list[int]:
    result = run("topic", "tail", topic, "--json", *options, server=node.url)
    assert result.exit_code == 0, result.output
    return [line["value"] for line in lines_of(result.stdout)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "earliest"), [0, 1, 2, 3, 4]),
        (("--from", "3"), [3, 4]),
        (("--from", "-2"), [3, 4]),
        (("--from", "-99"), [0, 1, 2, 3, 4]),
        (("--from", "latest"), []),
        ((), []),
        (("--from", "earliest", "--limit", 2), [0, 1]),
    ],
    ids=str,
)
def test_it_begins_where_it_is_told_to_and_ends_at_the_end(
    node: RunningBroker, client: millstream.Client, options: tuple[object], expected: list[int]
) -> None:
    client.append_many("orders", range(5))
    assert numbers(node, "--no-follow", *options) == expected


def test_following_goes_on_with_what_comes_until_the_limit(
    node: RunningBroker, client: millstream.Client
) -> None:
    client.create_topic("orders", partitions=2)
    client.append("orders", 1, partition=0)
    words = (
        "topic",
        "tail",
        "orders",
        "--server",
        node.url,
        "--from",
        "-1",
        "--limit",
        3,
        "--json",
    )
    with started(*words) as process:
        assert b'"value": 1' in process.stdout.readline()
        client.append("orders", 2, partition=1)
        assert b'"value": 2' in process.stdout.readline()
        client.append("orders", 3, partition=0)
        assert b'"value": 3' in process.stdout.readline()
        assert process.wait(PATIENCE) == 0


def test_it_follows_from_the_end_unless_it_is_told_otherwise(
    node: RunningBroker, client: millstream.Client
) -> None:
    client.append("orders", "before")
    with started("topic", "tail", "orders", "--server", node.url, "--limit", "1") as process:
        # The start of tail cannot be observed, so append until it has printed a record.
        while process.poll() is None:
            client.append("orders", "after")
        said = process.stdout.read()
    assert process.returncode == 0
    assert said.endswith(b'"after"\n')
    assert said.count(b"\n") == 1


def test_one_partition_is_shown(node: RunningBroker, client: millstream.Client) -> None:
    client.create_topic("orders", partitions=2)
    client.append_many("orders", [NewRecord(n, partition=n % 2) for n in range(6)])
    assert numbers(node, "--no-follow", "--from", 1, "--partition", 1) == [3, 5]
    assert numbers(node, "--from", 1, "--partition", 1, "--limit", 2) == [3, 5]
    assert sorted(numbers(node, "--no-follow", "--from", "-1")) == [4, 5]
    result = run("topic", "tail", "orders", "--from", 1, server=node.url)
    assert result.exit_code == 2
    assert "2 partitions" in result.stderr
    result = run("topic", "tail", "orders", "--partition", 2, server=node.url)
    assert result.exit_code == 1
    assert is_one_line(result.stderr)
    assert "has partitions 0-1, got 2" in result.stderr


def test_a_line_has_place_time_key_and_value_with_controls_escaped(
    node: RunningBroker, client: millstream.Client
) -> None:
    at = 1_763_240_000_000
    client.create_topic("orders", configs={"message.timestamp.type": "CreateTime"})
    client.append("orders", b"a\x1b[2J\nb", key="k\x07", timestamp_ms=at)
    client.append("orders", b"\xff\xfe", key=b"\xff", timestamp_ms=at)
    client.append("orders", None, timestamp_ms=at)
    words = ("topic", "tail", "orders", "--from", "earliest", "--no-follow")
    assert run(*words, server=node.url).stdout.splitlines() == [
        r"0:0  2025-11-15T20:53:20.000Z  k\x07  a\x1b[2J\nb",
        r"0:1  2025-11-15T20:53:20.000Z  \xff  \xff\xfe",
        "0:2  2025-11-15T20:53:20.000Z  -  (no value)",
    ]


def test_values_go_to_a_pipe_as_they_are_and_to_a_terminal_escaped(
    node: RunningBroker, client: millstream.Client
) -> None:
    client.append_many("orders", [b"\x1b[2J\xff", b"b"])
    words = ("topic", "tail", "orders", "--from", "earliest", "--no-follow", "--values")
    assert run(*words, server=node.url).stdout_bytes == b"\x1b[2J\xff\nb\n"
    assert on_a_terminal(*words, "--server", node.url) == (0, "\\x1b[2J\\xff\nb\n")


def test_what_retention_took_is_told_beside_the_records(
    node: RunningBroker, client: millstream.Client
) -> None:
    client.append("orders", 0)
    client.append("orders", 1)

    async def evict() -> None:
        log = node.server.broker.store.get("orders")
        await log.roll()
        await log.evict_before(1)

    node.run(evict())
    for option in ("--no-follow", "--follow"):
        words = ("topic", "tail", "orders", "--from", "earliest", option, "--limit", 1, "--values")
        result = run(*words, server=node.url)
        assert result.stdout == "1\n"
        assert result.stderr == "partition 0: offsets 0-0 were deleted by retention\n"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("age", "retention, by age"),
        ("bytes", "retention, by size"),
        ("records", "retention, by record count"),
    ],
)
def test_a_gap_is_told_with_the_policy_that_made_it(
    node: RunningBroker, client: millstream.Client, reason: str, words: str
) -> None:
    client.append("orders", 0)
    client.append("orders", 1)
    node.run(node.server.broker.store.get("orders").evict_before(1, reason))
    result = run("topic", "tail", "orders", "--from", "earliest", "--no-follow", server=node.url)
    assert result.stderr == f"partition 0: offsets 0-0 were deleted by {words}\n"


def test_ctrl_c_ends_it_in_silence(node: RunningBroker, client: millstream.Client) -> None:
    client.append("orders", 1)
    words = ("topic", "tail", "orders", "--server", node.url, "--from", "earliest", "--values")
    with started(*words) as process:
        assert process.stdout.readline() == b"1\n"
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said, errors) == (130, b"", b"")


def test_a_reader_that_has_gone_ends_it_in_silence(
    node: RunningBroker, client: millstream.Client
) -> None:
    client.append_many("orders", range(2_000))
    read, write = os.pipe()
    words = ("topic", "tail", "orders", "--server", node.url, "--from", "earliest")
    with started(*words, stdout=write) as process:
        os.close(write)
        os.read(read, 10)
        os.close(read)
        errors = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, errors) == (1, b"")


def test_a_topic_that_is_deleted_meanwhile_ends_it_with_one_line(
    node: RunningBroker, client: millstream.Client
) -> None:
    client.append("orders", 1)
    words = ("topic", "tail", "orders", "--server", node.url, "--from", "earliest", "--values")
    with started(*words) as process:
        assert process.stdout.readline() == b"1\n"
        client.topic("orders").delete()
        errors = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 1
    assert is_one_line(errors)
    assert "orders" in errors


@pytest.mark.parametrize("start", ["first", "1.5", "-0", "", "--", "9" * 19])
def test_a_beginning_that_is_none_is_wrong_usage(start: str) -> None:
    result = run("topic", "tail", "orders", f"--from={start}")
    assert result.exit_code == 2
    assert "must be earliest, latest, an offset or -N" in result.stderr


def test_an_offset_past_the_end_is_refused_in_one_line(
    node: RunningBroker, client: millstream.Client
) -> None:
    client.append("orders", 1)
    for option in ("--follow", "--no-follow"):
        result = run("topic", "tail", "orders", "--from", "7", option, server=node.url)
        assert result.exit_code == 1
        assert is_one_line(result.stderr)
        assert "offset must be between 0 and 1, got 7" in result.stderr
