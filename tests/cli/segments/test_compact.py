"""`millstream segments compact`: removed and remaining records, and its output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import millstream
from millstream.cli.main import main
from millstream.config.schema import LogConfig, StoreConfig
from millstream.records.record import Record, StoredRecord
from millstream.testing.broker import RunningBroker, running_broker

SMALL = LogConfig(segment_bytes_max=1024)
QUIET = StoreConfig(upkeep_interval_ms=0)
SECRET = b"what nobody may find again"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def compact(data: Path, *options: object) -> list[dict[str, Any]]:
    """Run the command; return its output lines, by column."""
    result = run("segments", "compact", "--data", data, "--json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def fill(data: Path, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Write forty records of four keys, in several segments, to each topic of a node."""
    with running_broker(data, log=SMALL, store=QUIET) as node:
        for name, configs in topics.items():
            node.run(_fill(node, name, {"segment.bytes": "1024", **configs}))


async def _fill(node: RunningBroker, name: str, configs: Mapping[str, str]) -> None:
    topics = node.server.broker.topics
    partition = (await topics.create(name, partitions=1, configs=configs)).partition(0)
    await partition.open()
    log = node.server.broker.store.get(name)
    for number in range(40):
        key = b"key-%d" % (number % 4)
        value = SECRET if number % 4 == 0 else b"v"
        await log.append_records([Record(value + b"." * 60, key=key)])


def delete(data: Path, topic: str, key: bytes) -> None:
    with running_broker(data, log=SMALL, store=QUIET) as node:

        async def go() -> None:
            partition = node.server.broker.topics.partition(topic, 0)
            await partition.open()
            assert await partition.delete_keys(key=key) == 10

        node.run(go())


def read(data: Path, topic: str) -> list[StoredRecord]:
    with millstream.open(data, store_config=QUIET) as store:
        found = list(store.log(topic).read())
    assert all(isinstance(record, StoredRecord) for record in found)
    return found


def logs(data: Path, topic: str) -> dict[str, bytes]:
    """Return the `.log` files of a topic, by name."""
    return {path.name: path.read_bytes() for path in (data / "topics" / topic).rglob("*.log")}


def holds(data: Path, text: bytes) -> bool:
    """Return whether any file of the directory contains these bytes."""
    return any(text in path.read_bytes() for path in data.rglob("*") if path.is_file())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_compacted_topic_keeps_the_latest_record_of_each_key(data: Path) -> None:
    fill(data, {"prices": {"cleanup.policy": "compact"}, "orders": {}})
    (row,) = [one for one in compact(data) if one["topic"] == "prices"]
    assert row["partition"] == 0
    assert row["records_before"] == 40
    assert row["records_after"] == 4
    assert row["bytes_after"] < row["bytes_before"] / 5
    assert row["segments_after"] < row["segments_before"]
    records = read(data, "prices")
    assert [(record.offset, record.key) for record in records] == [
        (36 + number, b"key-%d" % number) for number in range(4)
    ]
    assert len(read(data, "orders")) == 40


def test_deleted_bytes_are_in_no_file_afterwards(data: Path) -> None:
    fill(data, {"orders": {}})
    delete(data, "orders", b"key-0")
    assert holds(data, SECRET)
    (row,) = compact(data)
    assert row["records_before"] - row["records_after"] == 10
    assert not holds(data, SECRET)
    assert not holds(data, b"key-0")
    assert len(read(data, "orders")) == 30
    assert run("segments", "verify", "--data", data).exit_code == 0


def test_what_is_too_much_goes(data: Path) -> None:
    fill(data, {"orders": {"millstream.retention.records": "10"}})
    (row,) = compact(data)
    assert row["records_before"] == 40
    assert 10 <= row["records_after"] < 40
    assert 10 <= len(read(data, "orders")) < 40


def test_a_second_run_finds_nothing_to_do(data: Path) -> None:
    fill(data, {"orders": {"millstream.retention.records": "10"}, "prices": {}})
    assert compact(data)
    result = run("segments", "compact", "--data", data)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "2 logs checked: 0 changed, 0 failed\n"


def test_only_the_named_topic_is_touched(data: Path) -> None:
    policy = {"cleanup.policy": "compact"}
    fill(data, {"prices": policy, "rates": policy})
    before = logs(data, "rates")
    assert [row["topic"] for row in compact(data, "--topic", "prices")] == ["prices"]
    assert logs(data, "rates") == before


def test_a_dry_run_says_what_would_go_and_leaves_it(data: Path) -> None:
    fill(
        data,
        {
            "orders": {"millstream.retention.records": "10"},
            "customers": {},
            "prices": {"cleanup.policy": "compact"},
            "other": {},
        },
    )
    delete(data, "customers", b"key-0")
    before = {topic: logs(data, topic) for topic in ("orders", "customers", "prices", "other")}
    rows = {row["topic"]: row for row in compact(data, "--dry-run")}
    assert rows.keys() == {"orders", "customers", "prices"}
    assert rows["orders"]["evicted_segments"] > 0
    assert 0 < rows["orders"]["evicted_records"] <= 30
    assert rows["orders"]["evicted_bytes"] > 0
    assert rows["orders"]["reasons"] == ["records"]
    assert rows["customers"]["deleted_records"] == 10
    assert rows["customers"]["reclaimable_bytes"] > 10 * len(SECRET)
    assert rows["prices"]["uncompacted_bytes"] > 0
    assert {topic: logs(data, topic) for topic in before} == before
    table = run("segments", "compact", "--data", data, "--dry-run")
    assert len(table.stdout.splitlines()) == 4
    assert table.stderr == "4 logs checked: 3 would change, 0 failed\n"


def test_a_table_has_a_line_for_each_log_that_changed(data: Path) -> None:
    fill(data, {"prices": {"cleanup.policy": "compact"}})
    result = run("segments", "compact", "--data", data)
    head, line = result.stdout.splitlines()
    assert head.split() == [
        "TOPIC", "PARTITION", "BYTES", "AFTER", "RECORDS", "AFTER", "SEGMENTS", "AFTER",
    ]  # fmt: skip
    assert line.split()[4:6] == ["40", "4"]
    assert result.stderr == "1 logs checked: 1 changed, 0 failed\n"


# Directories of embedded stores.


def test_a_directory_of_an_embedded_store_is_reclaimed_and_stays_one(data: Path) -> None:
    with millstream.open(data, config=SMALL, store_config=QUIET) as store:
        log = store.log("orders")
        for number in range(40):
            log.append(SECRET if number % 4 == 0 else b"v" * 60, key=b"key-%d" % (number % 4))
        log.delete_keys(key=b"key-0")
    (row,) = compact(data)
    assert row["records_before"] - row["records_after"] == 10
    assert row["segments_after"] == 1
    assert not holds(data, SECRET)
    assert len(read(data, "orders")) == 30
    assert not (data / "meta.db").exists()
    assert not (data / "__state").exists()


# Refusals and failures.


def test_a_directory_that_a_node_has_open_is_refused_in_one_line(data: Path) -> None:
    fill(data, {"orders": {"cleanup.policy": "compact"}})
    before = logs(data, "orders")
    with running_broker(data, store=QUIET):
        result = run("segments", "compact", "--data", data)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert str(data) in result.stderr
    assert logs(data, "orders") == before


def test_a_topic_without_logs_is_refused_in_one_line(data: Path) -> None:
    fill(data, {"orders": {}})
    result = run("segments", "compact", "--data", data, "--topic", "order")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {data} has no logs of topic 'order'\n"


def test_a_damaged_log_is_named_and_the_others_are_looked_after(data: Path) -> None:
    policy = {"cleanup.policy": "compact"}
    fill(data, {"bad": policy, "good": policy})
    path = min((data / "topics" / "bad").rglob("*.log"))
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    result = run("segments", "compact", "--data", data, "--json")
    rows = {row["topic"]: row for row in json.loads(result.stdout)}
    assert rows["good"]["records_after"] == 4
    assert path.read_bytes() == content, "what is damaged is not touched"
    assert result.exit_code == 1
    assert "bad/0: " in result.stderr
    assert result.stderr.endswith(" 1 failed\n")
