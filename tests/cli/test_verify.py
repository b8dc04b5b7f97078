"""`millstream verify`: output, data directories and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millstream import AcknowledgementFile
from millstream.cli.main import main
from millstream.testing.broker import running_broker
from tests.audit.verification.nodes import TOPIC, Stage
from tests.cli.stores import clean_store, put_on_disk


def run(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)], env=env)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of an embedded store, without topic metadata."""
    put_on_disk(clean_store(), str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def file(tmp_path: Path):
    with AcknowledgementFile(tmp_path / "acknowledged") as made:
        yield made


def test_a_sound_directory_ends_with_0_and_says_how_much_was_read(data: Path) -> None:
    result = run("--data", data)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "0 damaged, 0 unfinished; 0 acknowledged: 0 lost, 0 different" in result.stderr


def test_lost_and_different_records_are_listed_with_their_lines(data: Path, file) -> None:
    file.note("events", 0, 0, value=b"...", key=b"key")
    file.note("events", 0, 1, value=b"\xff\x00")
    file.note("events", 0, 999, value=b"")
    file.note("events", 7, 0, value=b"")
    file.flush()
    result = run("--data", data, "--acknowledged", file.path)
    assert result.exit_code == 1
    different, beyond, elsewhere, head, row = result.stdout.splitlines()
    assert different.startswith(
        "different: events-0 offset 0: the record at its offset has another value"
    )
    assert different.endswith(f"({file.path} line 2)")
    assert beyond.startswith("lost: events-0 offset 999: the partition ends at offset 14")
    assert elsewhere.startswith("lost: events-7 offset 0: partition events-7 has no files")
    assert head.split()[:2] == ["TOPIC", "FOUND"]
    assert row.split() == ["events", "1", "0", "0", "0", "0", "0", "1", "2"]


def test_only_the_topics_that_are_named_are_verified(data: Path, file) -> None:
    file.note("events", 0, 999, value=b"")
    file.flush()
    log = next((data / "topics/events/0").glob("*.log"))
    log.write_bytes(b"\0" + log.read_bytes()[1:])
    options = ("--data", data, "--acknowledged", file.path)
    assert run(*options, "--topic", "orders").exit_code == 0
    assert run(*options, "--topic", "orders", "--topic", "events").exit_code == 1


def test_what_was_not_finished_or_has_no_place_is_told(data: Path, file) -> None:
    file.note("events", 0, -1, value=b"")
    file.close()
    with open(file.path, "ab") as torn:
        torn.write(b"{")
    result = run("--data", data, "--acknowledged", file.path)
    assert result.exit_code == 0
    assert f"{file.path}: the last line is incomplete and was skipped" in result.stderr
    assert "1 acknowledged without an offset, not checked" in result.stderr


def test_a_damaged_file_of_acknowledgements_ends_with_1(data: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("nonsense\n")
    result = run("--data", data, "--acknowledged", tmp_path / "bad")
    assert result.exit_code == 1
    assert "line 1: not the first line of an acknowledgement file" in result.stderr
    result = run("--data", data, "--acknowledged", tmp_path / "none")
    assert result.exit_code == 1
    assert "No such file" in result.stderr


def test_what_cannot_be_checked_ends_with_1(tmp_path: Path) -> None:
    assert run("--data", tmp_path / "none").exit_code == 1
    result = run("--bootstrap", "127.0.0.1:1", "--timeout", "0.1")
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stderr


def test_wrong_usage_ends_with_2(data: Path) -> None:
    assert run("--data", data, "--bootstrap", "127.0.0.1:1").exit_code == 2
    assert run("--samples", "-1").exit_code == 2
    assert run("--bytes-per-second", "0").exit_code == 2
    env = {"MILLSTREAM_DATA": str(data)}
    assert run("--bootstrap", "127.0.0.1:1", "--timeout", "0.1", env=env).exit_code == 1


def test_a_node_is_verified_with_a_seed_that_is_told_and_can_be_given(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage, stage.node() as broker:
        stage.create(broker)
        stage.fill(broker, 100)
        stage.acknowledged.flush()
        place = ("--bootstrap", broker.bootstrap, "--acknowledged", stage.acknowledged.path)
        result = run(*place, "--seed", 5, "--samples", 10)
        assert result.exit_code == 0
        assert "with --seed 5" in result.stderr
        report = json.loads(run(*place, "--json", "--bytes-per-second", 10_000_000).stdout)
        assert report["probes"]["offsets"] > 10
        assert report["probes"]["times"] > 1
        assert report["topics"][TOPIC]["found"] == 100
        assert run(*place, "--topic", "none").exit_code == 1


def test_a_node_without_topics_is_sound(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        assert run("--bootstrap", broker.bootstrap).exit_code == 0
