"""`millstream topic`: describe topics of a running node, and delete records."""

from __future__ import annotations

import base64
import json
import socket
import threading

import pytest

from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.testing.broker import RunningBroker
from tests.broker import partitions as broker_partitions
from tests.cli.commands import free_port, is_one_line, run, type_in


def append(node: RunningBroker, topic: str, *keys: bytes, partitions: int = 1) -> None:
    """Create the topic if needed, and append one record per key to all partitions."""

    async def go() -> None:
        topics = node.server.broker.topics
        if topics.find(topic) is None:
            await topics.create(topic, partitions=partitions)
        for partition in topics.get(topic).partitions:
            await partition.open()
            batch = build_batch([Record(b"v", key=key) for key in keys], now_ms=0)
            await broker_partitions.append(partition, batch)

    node.run(go())


def evict(node: RunningBroker, topic: str, offset: int) -> None:
    async def go() -> None:
        await node.server.broker.store.get(topic).evict_before(offset)

    node.run(go())


def describe(node: RunningBroker, topic: str) -> list[dict[str, object]]:
    result = run("topic", "describe", topic, "--json", server=node.url)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["partitions"]


# Show.


def test_describe_prints_a_table_with_one_line_for_each_partition(node: RunningBroker) -> None:
    append(node, "orders", b"a", b"b", b"a", partitions=2)
    run("topic", "delete-records", "orders", "--key", "a", "--yes", server=node.url)
    result = run("topic", "describe", "orders", server=node.url)
    assert result.exit_code == 0
    settings, head, *rows = result.stdout.splitlines()
    assert settings == "orders: 2 partitions, fsync"
    assert head.split() == [
        "PARTITION", "FIRST", "FLOOR", "END", "RECORDS", "BYTES", "SEGMENTS", "DELETED",
        "RECLAIMABLE", "GAPS",
    ]  # fmt: skip
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == ["0", "1"]
    assert [row[3:5] for row in cells] == [["3", "1"]] * 2
    assert [row[7] for row in cells] == ["2", "2"]
    assert all(int(row[8]) > 0 and row[9] == "-" for row in cells)


def test_describe_names_the_gap_that_retention_left(node: RunningBroker) -> None:
    append(node, "orders", b"a", b"b")
    append(node, "orders", b"c")
    evict(node, "orders", 2)
    result = run("topic", "describe", "orders", server=node.url)
    assert result.stdout.splitlines()[2].endswith("0-1 retention")
    assert describe(node, "orders")[0]["gaps"] == [{"from": 0, "to": 1, "reason": "retention"}]


def test_the_segments_of_a_topic_are_shown(node: RunningBroker) -> None:
    append(node, "orders", b"a", b"b", partitions=2)

    async def roll() -> None:
        await node.server.broker.store.get("orders").roll()

    node.run(roll())
    append(node, "orders", b"c")
    result = run("topic", "describe", "orders", "--segments", server=node.url)
    assert result.exit_code == 0, result.output
    _, head, *rows = result.stdout.splitlines()
    assert head.split()[:4] == ["PARTITION", "BASE", "END", "RECORDS"]
    assert [row.split()[:4] for row in rows] == [
        ["0", "0", "2", "2"], ["0", "2", "3", "1"], ["1", "0", "3", "3"]
    ]  # fmt: skip
    assert [row.split()[7] for row in rows] == ["sealed", "active", "active"]
    words = ("topic", "describe", "orders", "--segments", "--json")
    found = json.loads(run(*words, server=node.url).stdout)["segments"]
    assert [one["base_offset"] for one in found] == [0, 2, 0]


def test_the_server_comes_from_the_environment(
    node: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(node, "orders", b"a")
    monkeypatch.setenv("MILLSTREAM_SERVER", node.url)
    assert run("topic", "describe", "orders").exit_code == 0


def test_a_proxy_in_the_environment_is_not_asked(
    node: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(node, "orders", b"a")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert run("topic", "describe", "orders", server=node.url).exit_code == 0


@pytest.mark.parametrize("name", ["nothing", "../../etc", "a b", "%2e%2e", "\x1b[31m", "ü"])
def test_a_topic_that_is_not_there_ends_with_one_line(node: RunningBroker, name: str) -> None:
    for verb in (["describe"], ["delete-records", "--key", "a", "--yes"]):
        result = run("topic", *verb, name, server=node.url)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert is_one_line(result.stderr)
        assert "\x1b" not in result.stderr


# Delete.


def test_a_key_is_deleted(node: RunningBroker) -> None:
    append(node, "orders", b"a", b"b", b"a", partitions=2)
    result = run("topic", "delete-records", "orders", "--key", "a", "--yes", server=node.url)
    assert (result.exit_code, result.stdout) == (0, "4 records deleted\n")
    assert [one["deleted"] for one in describe(node, "orders")] == [2, 2]


def test_a_prefix_is_deleted_in_one_partition(node: RunningBroker) -> None:
    append(node, "orders", b"a1", b"a2", b"b", partitions=2)
    arguments = ("topic", "delete-records", "orders", "--key-prefix", "a", "--partition", 1)
    result = run(*arguments, "--yes", "--json", server=node.url)
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"deleted": 2})
    assert [one["deleted"] for one in describe(node, "orders")] == [0, 2]


def test_what_lies_before_an_offset_is_deleted(node: RunningBroker) -> None:
    append(node, "orders", b"a", b"b", partitions=2)
    arguments = ("topic", "delete-records", "orders", "--before", 1, "--yes")
    refused = run(*arguments, server=node.url)
    assert refused.exit_code == 1
    assert is_one_line(refused.stderr)
    assert "2 partitions" in refused.stderr
    assert run(*arguments, "--partition", 1, server=node.url).stdout == "1 records deleted\n"
    assert [one["first_live_offset"] for one in describe(node, "orders")] == [0, 1]


def test_keys_that_are_no_text_are_given_in_base64(node: RunningBroker) -> None:
    append(node, "orders", b"\xff", b"a")
    for key in (b"\xff", b"a"):
        words = ("--base64", "--key", base64.b64encode(key).decode(), "--yes")
        result = run("topic", "delete-records", "orders", *words, server=node.url)
        assert result.stdout == "1 records deleted\n"
    wrong = run("topic", "delete-records", "orders", "--base64", "--key", "*", "--yes")
    assert wrong.exit_code == 2
    assert "must be base64, got '*'" in wrong.stderr


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--partition", 0),
        ("--key", "a", "--key-prefix", "b"),
        ("--before", -1),
        ("--before", "all"),
    ],
    ids=str,
)
def test_options_that_do_not_say_which_records_are_wrong_usage(options: tuple[object]) -> None:
    assert run("topic", "delete-records", "orders", *options, "--yes").exit_code == 2


def test_nothing_is_deleted_without_a_yes_where_nobody_can_be_asked(node: RunningBroker) -> None:
    append(node, "orders", b"a")
    result = run("topic", "delete-records", "orders", "--key", "a", server=node.url)
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert describe(node, "orders")[0]["deleted"] == 0


@pytest.mark.parametrize(("typed", "status", "left"), [("y", 0, 0), ("n", 1, 1), ("", 1, 1)])
def test_on_a_terminal_it_is_asked_first(
    node: RunningBroker, typed: str, status: int, left: int
) -> None:
    append(node, "orders", b"a")
    arguments = ("topic", "delete-records", "orders", "--key", "a", "--server", node.url)
    returned, said = type_in(*arguments, typed=f"{typed}\n")
    assert returned == status
    assert "Permanently delete every record with the key 'a' of orders? [y/N]" in said
    assert describe(node, "orders")[0]["count"] == left


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--key-prefix", "a"), "every record whose key starts with 'a' of orders"),
        (("--before", 7, "--partition", 1), "every record before offset 7 in partition 1 of"),
        (("--key", "\x1b[2J", "--before", 7), r"the key '\x1b[2J' before offset 7 of orders"),
    ],
    ids=["prefix", "offset", "key"],
)
def test_the_question_says_what_goes(options: tuple[object], words: str) -> None:
    arguments = ("topic", "delete-records", "orders", "--server", "http://127.0.0.1:1", *options)
    assert words in type_in(*arguments, typed="n\n")[1]


# Without a running node.


def test_where_no_node_answers_that_is_said_in_one_line() -> None:
    server = f"http://127.0.0.1:{free_port()}"
    result = run("topic", "describe", "orders", server=server)
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: no node answers at {server}: Connection refused; set the address with --server\n"
    )


@pytest.mark.parametrize(
    "server",
    ["127.0.0.1:8080", "file:///etc/passwd", "http://", "http://a:70000", "http://a b", "ftp://a"],
)
def test_what_is_no_address_of_a_node_is_wrong_usage(server: str) -> None:
    result = run("topic", "describe", "orders", server=server)
    assert result.exit_code == 2
    assert "must be http://HOST:PORT" in result.stderr


OTHERS = {
    "a page": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<p/>\n",
    "another api": b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"topic": 1}',
    "a list": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "a number": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7",
    "another error": b'HTTP/1.1 404 No\r\nContent-Length: 14\r\n\r\n{"error": "no"}',
    "a redirect": b"HTTP/1.1 302 No\r\nLocation: http://a/\r\nContent-Length: 0\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", OTHERS.values(), ids=OTHERS.keys())
def test_what_is_no_node_is_said_to_be_none_in_one_line(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        server = f"http://127.0.0.1:{listening.getsockname()[1]}"
        result = run("topic", "describe", "orders", server=server)
        thread.join()
    assert result.exit_code == 1
    assert is_one_line(result.stderr), result.output
    assert server in result.stderr
