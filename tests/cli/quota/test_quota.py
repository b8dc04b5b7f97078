"""`millstream quota`: show and change the quotas of a running node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.config.schema import BrokerConfig
from millstream.testing.broker import RunningBroker, running_broker


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "node") as broker:
        yield broker


def run(node: RunningBroker, *words: str) -> Result:
    return CliRunner().invoke(main, ["quota", *words, "--server", node.url])


def listed(node: RunningBroker) -> object:
    return json.loads(run(node, "list", "--json").stdout)["quotas"]


def test_quotas_are_set_listed_and_removed(node: RunningBroker) -> None:
    set_one = run(
        node, "set", "--client-id", "etl",
        "--producer-byte-rate", "1 MiB", "--request-percentage", "12.5",
    )  # fmt: skip
    assert (set_one.exit_code, set_one.stdout) == (
        0,
        "producer_byte_rate 1048576, request_percentage 12.5\n",
    )
    run(node, "set", "--user", "alice", "--default-client-id", "--consumer-byte-rate", "5")
    table = run(node, "list").stdout
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["-", "etl", "1048576", "-", "12.5", "-"],
        ["alice", "<default>", "-", "5", "-", "-"],
    ]
    removed = run(node, "set", "--client-id", "etl", "--producer-byte-rate", "none", "--json")
    assert json.loads(removed.stdout) == {"client_id": "etl", "rates": {"request_percentage": 12.5}}
    gone = run(node, "remove", "--client-id", "etl")
    assert (gone.exit_code, gone.stdout) == (0, "removed request_percentage\n")
    assert listed(node) == [
        {"user": "alice", "client_id": {"default": True}, "rates": {"consumer_byte_rate": 5.0}}
    ]


def test_the_default_of_the_node_is_listed_too(tmp_path: Path) -> None:
    config = BrokerConfig(limit_consumer_bytes_per_second=4096)
    with running_broker(tmp_path, broker=config) as node:
        line = run(node, "list").stdout.splitlines()[1]
        assert line.split() == ["<others>", "<others>", "-", "4096", "-", "-"]


def test_a_quota_that_is_not_there_is_not_removed(node: RunningBroker) -> None:
    result = run(node, "remove", "--client-id", "nobody")
    assert (result.exit_code, result.stderr) == (1, "Error: there was no quota to remove\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["set", "--producer-byte-rate", "1"], "a user, a client id, or both are required"),
        (["set", "--client-id", "a"], "a rate is required"),
        (
            ["set", "--client-id", "a", "--default-client-id", "--request-percentage", "1"],
            "cannot be combined",
        ),
        (["set", "--client-id", "a", "--producer-byte-rate", "much"], "must be a number above 0"),
        (["set", "--client-id", "a", "--request-percentage", "0"], "must be a number above 0"),
        (["set", "--client-id", "a", "--request-percentage", "nan"], "must be a number above 0"),
        (["remove"], "a user, a client id, or both are required"),
    ],
)
def test_wrong_usage_is_told_and_changes_nothing(
    node: RunningBroker, words: list[str], says: str
) -> None:
    result = run(node, *words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert listed(node) == []


def test_what_the_node_refuses_is_told(node: RunningBroker) -> None:
    result = run(node, "set", "--client-id", "x" * 256, "--request-percentage", "1")
    assert result.exit_code == 1
    assert "client_id" in result.stderr
