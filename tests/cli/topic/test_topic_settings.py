"""`millstream topic create`, `set`, `list` and `delete`, against a node."""

from __future__ import annotations

import pytest

import millstream
from millstream.testing.broker import RunningBroker
from tests.cli.commands import is_one_line, on_a_terminal, run, told, type_in


def configs(node: RunningBroker, topic: str) -> dict[str, str]:
    return told("topic", "describe", topic, server=node.url)["configs"]


def test_a_topic_is_made_as_it_was_asked_for(node: RunningBroker) -> None:
    result = run(
        "topic", "create", "orders", "--partitions", 3, "--durability", "disk",
        "--retention-ms", "7d", "--retention-bytes", "1.5GiB", "--config", "max.message.bytes=2MiB",
        server=node.url,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "created orders: 3 partitions, disk, max.message.bytes=2097152, millstream.durability=disk,"
        " retention.bytes=1610612736, retention.ms=604800000\n"
    )
    assert configs(node, "orders")["retention.ms"] == "604800000"


def test_a_topic_that_is_there_is_not_changed(node: RunningBroker) -> None:
    made = told("topic", "create", "orders", "--partitions", 2, server=node.url)
    assert (made["created"], made["partition_count"]) == (True, 2)
    again = run("topic", "create", "orders", "--partitions", 5, server=node.url)
    assert again.exit_code == 1
    assert is_one_line(again.stderr)
    assert "`topic set` changes it" in again.stderr
    kept = told("topic", "create", "orders", "--partitions", 5, "--if-absent", server=node.url)
    assert (kept["created"], kept["partition_count"], kept["id"]) == (False, 2, made["id"])


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (("--config", "no.such=1"), 1, "'no.such' is not a topic config"),
        (("--config", "retention.ms=soon"), 1, "retention.ms"),
        (("--config", "retention.ms"), 2, "must be KEY=VALUE"),
        (("--config", "a=1", "--config", "a=2"), 2, "a is set twice"),
        (("--retention-ms", "1d", "--config", "retention_ms=2d"), 2, "retention_ms is set twice"),
        (("--retention-ms", "7 weeks"), 2, "optionally with ms, s, min, h, d"),
        (("--partitions", "0"), 2, "0 is not in the range"),
        (("--durability", "sure"), 2, "'fsync'"),
    ],
    ids=str,
)
def test_what_cannot_be_set_is_named(
    node: RunningBroker, options: tuple[str, ...], status: int, words: str
) -> None:
    result = run("topic", "create", "orders", *options, server=node.url)
    assert (result.exit_code, result.stdout) == (status, "")
    assert words in result.stderr
    assert told("topic", "list", server=node.url)["topics"] == []


def test_settings_are_changed_and_the_rest_stays(node: RunningBroker) -> None:
    run(
        "topic", "create", "orders", "--retention-ms", "7d", "--cleanup", "compact", server=node.url
    )
    words = ("partitions=4", "max.message.bytes=2MiB", "--unset", "retention.ms")
    result = run("topic", "set", "orders", *words, server=node.url)
    assert result.stdout == (
        "orders: 4 partitions, fsync, cleanup.policy=compact, max.message.bytes=2097152\n"
    )


def test_a_topic_that_is_not_there_is_not_made_by_setting_it(node: RunningBroker) -> None:
    run("topic", "create", "orders", server=node.url)
    result = run("topic", "set", "order", "partitions=4", server=node.url)
    assert result.exit_code == 1
    assert result.stderr == "Error: topic 'order' does not exist. Did you mean orders?\n"
    assert len(told("topic", "list", server=node.url)["topics"]) == 1


def test_setting_nothing_is_wrong_usage(node: RunningBroker) -> None:
    assert run("topic", "set", "orders", server=node.url).exit_code == 2


def test_topics_are_listed_with_what_they_hold(node: RunningBroker) -> None:
    empty = run("topic", "list", server=node.url)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "topic create" in empty.stderr
    with millstream.Client(node.url) as client:
        client.create_topic("orders", partitions=2, durability="disk")
        client.append_many("orders", [1, 2, 3])
        client.create_topic("mail")
    found = told("topic", "list", server=node.url)["topics"]
    assert [one["name"] for one in found] == ["mail", "orders"]
    assert found[1]["sizes"]["records"] == 3
    head, mail, orders = run("topic", "list", server=node.url).stdout.splitlines()
    assert head.split() == [
        "TOPIC", "PARTITIONS", "DURABILITY", "RECORDS", "BYTES", "SEGMENTS"
    ]  # fmt: skip
    assert mail.split()[:3] == ["mail", "1", "fsync"]
    assert orders.split()[:4] == ["orders", "2", "disk", "3"]


def test_a_name_that_would_change_the_path_is_refused(node: RunningBroker) -> None:
    for noun, command in [("topic", "create"), ("topic", "describe"), ("queue", "create")]:
        for name in ("", "a/b"):
            result = run(noun, command, name, server=node.url)
            assert result.exit_code == 1
            assert f"must not be empty or contain '/', got {name!r}" in result.stderr


def test_where_names_are_not_alike_some_that_there_are_are_told(node: RunningBroker) -> None:
    result = run("topic", "describe", "orders", server=node.url)
    assert result.stderr == "Error: topic 'orders' does not exist; there are no topics yet\n"
    for name in "abcdefg":
        run("topic", "create", f"{name * 3}", server=node.url)
    result = run("topic", "describe", "orders", server=node.url)
    assert result.stderr.endswith(
        "existing topics: aaa, bbb, ccc, ddd, eee and others: millstream topic list\n"
    )


def test_a_topic_is_deleted(node: RunningBroker) -> None:
    run("topic", "create", "orders", server=node.url)
    unsure = run("topic", "delete", "orders", server=node.url)
    assert unsure.exit_code == 2
    assert "--yes" in unsure.stderr
    assert told("topic", "delete", "orders", "--yes", server=node.url) == {"deleted": "orders"}
    gone = run("topic", "delete", "orders", "--yes", server=node.url)
    assert gone.exit_code == 1
    assert is_one_line(gone.stderr)


@pytest.mark.parametrize(("typed", "status", "left"), [("y", 0, 0), ("n", 1, 1)])
def test_who_deletes_a_topic_is_asked_with_how_much_goes(
    node: RunningBroker, typed: str, status: int, left: int
) -> None:
    with millstream.Client(node.url) as client:
        client.create_topic("orders")
        client.append_many("orders", [1, 2, 3])
    words = ("topic", "delete", "orders", "--server", node.url)
    returned, said = type_in(*words, typed=f"{typed}\n")
    assert returned == status
    assert "Permanently delete the topic orders (3 records, " in said
    assert len(told("topic", "list", server=node.url)["topics"]) == left


def test_a_terminal_gets_a_table_and_colours_unless_it_wants_none(node: RunningBroker) -> None:
    run("topic", "create", "orders", server=node.url)
    words = ("topic", "describe", "orders", "--server", node.url)
    coloured = on_a_terminal(*words)[1]
    plain = on_a_terminal(*words, environment={"NO_COLOR": "1", "TERM": "dumb"})[1]
    assert "\x1b[1m" in coloured
    assert "\x1b" not in plain
    assert "PARTITION" in plain
