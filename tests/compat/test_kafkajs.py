"""KafkaJS, the client written in JavaScript, writes, reads, shares, transacts and administers.

The scenarios are in `kafkajs/scenario.js`; the expected results are here.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from .conftest import TIMEOUT_S

FOLDER = Path(__file__).parent / "kafkajs"


@pytest.fixture
def play(bootstrap, name):
    """Run a scenario and return its output."""

    assert (FOLDER / "node_modules" / "kafkajs").exists(), "run `make clients`"

    def run(scenario):
        done = subprocess.run(
            ["node", "scenario.js", scenario, bootstrap, name],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            timeout=3 * TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_records_are_read_as_they_were_written(play):
    seen = play("records")
    assert seen["offsets"] == ["0", "2", "4", "6", None, None]
    messages = seen["messages"]
    assert [message["offset"] for message in messages] == [str(number) for number in range(12)]
    for message, acks in zip(messages[::2], ("-1", "-1", "1", "1", "0", "0"), strict=True):
        assert message["key"] == acks
        assert message["timestamp"] == "1234"
        assert message["headers"] == {"a": "1,2", "b": "x"}
    assert [message["value"] for message in messages[::2]] == ["value 0 " * 50, "value 1 " * 50] * 3
    assert {(message["key"], message["value"]) for message in messages[1::2]} == {(None, None)}


def test_an_idempotent_producer_keeps_its_order(play):
    assert play("idempotent") == [str(number) for number in range(20)]


def test_two_members_share_and_the_last_takes_all(play):
    seen = play("group")
    assert seen["shared"] == [0, 1, 2, 3]
    assert seen["values"] == ["0.0", "0.1", "0.2", "0.3", "1.0", "1.1", "1.2", "1.3"]


def test_a_transaction_is_seen_whole_or_not_at_all(play):
    seen = play("transactions")
    assert seen["committed"] == "3"
    assert seen["seen"] == ["0", "0", "2", "2"]
    assert seen["all"] == ["0", "0", "1", "1", "2", "2"]


def test_an_operator_is_served(play, bootstrap):
    assert play("admin") == {
        "again": False,
        "isListed": True,
        "partitions": [0, 1, 2],
        "offsets": {"partition": 0, "offset": "4", "high": "4", "low": "0"},
        "byTime": {"partition": 0, "offset": "2"},
        "committed": "3",
        "groupState": "Empty",
        "isGroupListed": True,
        "isGroupListedAfter": False,
        "retention": "9999",
        "low": "2",
        "brokers": [bootstrap],
        "isListedAfter": False,
    }
