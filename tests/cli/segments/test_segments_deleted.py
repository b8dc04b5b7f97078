"""`millstream segments` with deleted records, and with the `__state` of a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.storage.store import Store
from millstream.testing import SimulatedFilesystem
from tests.cli.stores import clean_store, fill, put_on_disk, run_store

START = 15


def deleted_store() -> SimulatedFilesystem:
    """Return a disk with a log that starts inside a segment; earlier segments are removed."""
    disk = SimulatedFilesystem()

    async def delete(store: Store) -> None:
        await fill(store)
        await (await store.log("orders")).delete_before(START)

    run_store(disk, "/data", delete)
    return disk


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with state, metadata and files in the trash."""
    path = tmp_path / "data"
    put_on_disk(deleted_store(), str(path))
    put_on_disk(clean_store(), str(path / "__state"))
    put_on_disk(clean_store(), str(path / "trash" / "0b7a"))
    (path / "metadata.sqlite").write_bytes(b"SQLite format 3")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def rows(*arguments: object) -> list[dict[str, Any]]:
    return json.loads(run("segments", "list", "--json", *arguments).stdout)


def test_list_shows_the_state_behind_the_topics_and_nothing_of_the_trash(data: Path) -> None:
    topics = [row["topic"] for row in rows("--data", data)]
    assert sorted(set(topics)) == ["__state/events", "__state/orders", "events", "orders"]
    is_state = [topic.startswith("__state/") for topic in topics]
    assert is_state == sorted(is_state)


def test_list_finds_one_topic_of_the_state(data: Path) -> None:
    found = rows("--data", data, "--topic", "__state/orders", "--partition", 1)
    assert {(row["topic"], row["partition"]) for row in found} == {("__state/orders", 1)}
    assert rows("--data", data, "--topic", "orders")[0]["topic"] == "orders"


def test_the_state_is_a_data_directory_of_its_own(data: Path) -> None:
    state = data / "__state"
    assert {row["topic"] for row in rows("--data", state)} == {"events", "orders"}
    assert run("segments", "verify", "--data", state).exit_code == 0
    dumped = run("segments", "dump", "--data", state, "--topic", "orders", "--limit", 1)
    assert json.loads(dumped.stdout)["offset"] == 0
    assert run("segments", "reindex", "--data", state, "--all").exit_code == 0


def test_list_leaves_out_the_segments_that_were_deleted(data: Path) -> None:
    arguments = ("--data", data, "--partition", 0, "--topic")
    bases = [row["base_offset"] for row in rows(*arguments, "orders")]
    before = [row["base_offset"] for row in rows(*arguments, "__state/orders")]
    first = max(base for base in before if base <= START)
    assert 0 < first < START
    assert bases == [base for base in before if base >= first]


def test_dump_starts_where_the_log_does(data: Path) -> None:
    arguments = ("segments", "dump", "--data", data, "--topic", "orders")
    batches = [json.loads(line) for line in run(*arguments).stdout.splitlines()]
    assert batches[0]["offset"] <= START <= batches[0]["last_offset"]
    records = [json.loads(line) for line in run(*arguments, "--records").stdout.splitlines()]
    assert [record["offset"] for record in records] == list(range(START, 42))
    shorter = run(*arguments, "--records", "--from", 20, "--until", 22).stdout.splitlines()
    assert [json.loads(line)["offset"] for line in shorter] == [20, 21]


def test_verify_checks_the_state_too(data: Path) -> None:
    result = run("segments", "verify", "--data", data)
    assert (result.exit_code, result.stdout) == (0, "")
    both = int(result.stderr.split()[0])
    alone = int(run("segments", "verify", "--data", data / "__state").stderr.split()[0])
    assert both > alone > 0
    path = next((data / "__state/topics/orders/0").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-1])
    result = run("segments", "verify", "--data", data, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert {Path(found["path"]) for found in report["findings"]} == {path}
    assert report["bytes"] == both - 1


def test_what_a_crash_left_of_deleted_segments_is_unfinished_and_no_damage(data: Path) -> None:
    whole = clean_store()
    for path, content in whole.contents().items():
        target = Path(str(data) + path.removeprefix("/data"))
        if content is not None and "orders/0/0" in path and not target.exists():
            target.write_bytes(content)
    result = run("segments", "verify", "--data", data)
    assert result.exit_code == 0
    assert "was deleted; will be removed at the next start" in result.stdout
    assert "unfinished: " in result.stdout
    listed = rows("--data", data, "--topic", "orders", "--partition", 0)
    assert 0 not in [row["base_offset"] for row in listed]
    assert run("segments", "reindex", "--data", data).exit_code == 0


def test_a_directory_called_like_the_state_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    put_on_disk(clean_store(), str(path))
    (path / "__state").mkdir()
    (path / "__state" / "notes").write_bytes(b"")
    assert run("segments", "verify", "--data", path).exit_code == 0
    assert {row["topic"] for row in rows("--data", path)} == {"events", "orders"}
