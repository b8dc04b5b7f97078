"""`millstream segments`: output, data directories and exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import millstream
from millstream.cli.main import main
from millstream.records.record import Record
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.files.names import segment_file
from tests.cli.stores import clean_store, killed_store, put_on_disk

MILLSTREAM = os.path.join(os.path.dirname(sys.executable), "millstream")
ORDERS = "topics/orders/0"
BATCH = 186


@pytest.fixture
def data(tmp_path: Path) -> Path:
    put_on_disk(clean_store(), str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    put_on_disk(killed_store(), str(tmp_path / "killed"))
    return tmp_path / "killed"


def run(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=env)


def run_process(
    *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MILLSTREAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
    )


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def file_of(data: Path, base: int, suffix: str) -> Path:
    return data / ORDERS / segment_file(base, suffix)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


VERBS = ["list", "dump --topic orders", "verify", "reindex", "compact"]
EVERY_VERB = pytest.mark.parametrize("verb", VERBS)


# The command.


def test_the_installed_command_tells_its_version() -> None:
    done = run_process("--version")
    assert (done.returncode, done.stdout) == (0, f"millstream {millstream.__version__}\n")


def test_the_shell_completes_commands() -> None:
    env = {"_MILLSTREAM_COMPLETE": "bash_complete", "COMP_WORDS": "millstream segments v"}
    done = run_process(env={**env, "COMP_CWORD": "2"})
    assert done.stdout == "plain,verify\n"


# Errors.


@EVERY_VERB
def test_a_directory_that_does_not_exist_ends_with_one_line(verb: str, tmp_path: Path) -> None:
    done = run("segments", *verb.split(), "--data", tmp_path / "nowhere")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "nowhere") in done.stderr
    assert not (tmp_path / "nowhere").exists()


@EVERY_VERB
def test_a_directory_of_something_else_ends_with_one_line(verb: str, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    result = run("segments", *verb.split(), "--data", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {tmp_path} is not a data directory: it has no node.json\n"
    assert os.listdir(tmp_path) == ["letter.txt"]


@EVERY_VERB
def test_a_file_ends_with_one_line(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("segments", *verb.split(), "--data", tmp_path / "file")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


@EVERY_VERB
def test_an_error_of_the_system_ends_with_one_line(
    verb: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: OsFilesystem, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(OsFilesystem, "list", refuse)
    result = run("segments", *verb.split(), "--data", data)
    assert (result.exit_code, result.stderr) == (1, f"Error: {data}: Permission denied\n")


def test_a_wrong_option_is_wrong_usage() -> None:
    assert run("segments", "verify", "--colour").exit_code == 2


def test_escape_sequences_in_a_path_do_not_reach_the_terminal(tmp_path: Path) -> None:
    done = run_process("segments", "verify", "--data", tmp_path / "\x1b[31mred")
    assert "\x1b" not in done.stderr
    assert "\\x1b[31mred" in done.stderr


# The data directory.


def test_the_data_directory_comes_from_the_environment(data: Path) -> None:
    result = run("segments", "verify", env={"MILLSTREAM_DATA": str(data)})
    assert result.exit_code == 0


def test_the_data_directory_is_looked_for_where_a_node_makes_it(tmp_path: Path) -> None:
    put_on_disk(clean_store(), str(tmp_path / "millstream-data"))
    assert run_process("segments", "verify", cwd=tmp_path).returncode == 0


# List.


def test_list_shows_a_table(killed: Path) -> None:
    result = run("segments", "list", "--data", killed, "--topic", "orders")
    header, *rows = [line.split() for line in result.stdout.splitlines()]
    assert header[:4] == ["TOPIC", "PARTITION", "BASE", "NEXT"]
    assert " ".join(rows[0]) == (
        "orders 0 0 10 10 5 930 2023-11-14T22:13:20.000Z 2023-11-14T22:13:20.838Z yes no 0 0"
    )
    assert [row[-4] for row in rows] == ["yes"] * 5 + ["no", "no"]


def test_list_prints_json(killed: Path) -> None:
    result = run("segments", "list", "--data", killed, "--json", "--partition", 0)
    rows = json.loads(result.stdout)
    assert {(row["topic"], row["partition"]) for row in rows} == {("orders", 0), ("events", 0)}
    assert rows[-1] == {
        "topic": "orders",
        "partition": 0,
        "base_offset": 44,
        "next_offset": 46,
        "records": 2,
        "batches": 1,
        "bytes": BATCH,
        "first_timestamp_ms": 1700000000436,
        "last_timestamp_ms": 1700000000436,
        "sealed": False,
        "cold": False,
        "leader_epoch": 3,
        "generation": 0,
    }


def test_list_of_an_unknown_topic_is_empty(data: Path) -> None:
    result = run("segments", "list", "--data", data, "--topic", "nope", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_list_shows_the_sound_part_of_what_has_no_sound_seal(data: Path) -> None:
    flip(file_of(data, 34, "seal"), 20)
    flip(file_of(data, 34, "log"), 2 * BATCH + 100)
    result = run("segments", "list", "--data", data, "--topic", "orders", "--json")
    assert json.loads(result.stdout)[4]["batches"] == 2


def test_a_running_node_is_looked_at_and_not_disturbed(tmp_path: Path) -> None:
    with millstream.open(tmp_path) as store:
        store.log("orders").append(b"first")
        rows = json.loads(run("segments", "list", "--data", tmp_path, "--json").stdout)
        assert [row["records"] for row in rows] == [1]
        assert run("segments", "verify", "--data", tmp_path).exit_code == 0
        assert run("segments", "dump", "--data", tmp_path, "--topic", "orders").exit_code == 0
        result = run("segments", "reindex", "--data", tmp_path)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert "another process" in result.stderr


# Dump.


def dump(data: Path, *arguments: object) -> Result:
    return run("segments", "dump", "--data", data, "--topic", "orders", *arguments)


def test_dump_prints_every_batch(data: Path) -> None:
    result = dump(data)
    found = lines(result)
    assert result.exit_code == 0
    assert [line["offset"] for line in found] == list(range(0, 42, 2))
    assert found[6] == {
        "offset": 12,
        "last_offset": 13,
        "count": 2,
        "segment": 10,
        "generation": 0,
        "position": BATCH,
        "bytes": BATCH,
        "codec": "none",
        "base_timestamp_ms": 1700000000028,
        "max_timestamp_ms": 1700000000028,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "leader_epoch": 0,
        "is_transactional": False,
        "is_control": False,
        "crc_ok": True,
    }


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--from", 15, "--until", 20], [14, 16, 18]),
        (["--from", 38], [38, 40]),
        (["--until", 3], [0, 2]),
        (["--limit", 2], [0, 2]),
        (["--from", 42], []),
        (["--from", 1000], []),
    ],
)
def test_dump_prints_one_stretch(data: Path, arguments: list[object], offsets: list[int]) -> None:
    assert [line["offset"] for line in lines(dump(data, *arguments))] == offsets


def test_dump_prints_records(data: Path) -> None:
    found = lines(dump(data, "--records", "--from", 3, "--until", 5))
    assert [line["offset"] for line in found] == [3, 4]
    assert (found[0]["value"], found[0]["value_encoding"]) == ("/wA=", "base64")
    assert (found[0]["key"], found[0]["key_encoding"]) == (None, None)
    assert (found[1]["value"], found[1]["value_encoding"]) == ("." * 100, "utf-8")
    assert (found[1]["key"], found[1]["key_encoding"]) == ("key", "utf-8")
    assert found[1]["headers"] == [{"key": "h", "value": "1", "value_encoding": "utf-8"}]


def test_dump_unpacks_compressed_batches(data: Path) -> None:
    assert {line["codec"] for line in lines(dump(data, "--partition", 1))} == {"zstd"}
    assert len(lines(dump(data, "--partition", 1, "--records"))) == 6


def test_dump_of_an_unknown_log_ends_with_one_line(data: Path) -> None:
    result = dump(data, "--partition", 7)
    assert (result.exit_code, result.stderr) == (1, f"Error: {data} has no log orders/7\n")


def test_dump_goes_on_behind_a_batch_that_fails_its_checksum(data: Path) -> None:
    log = file_of(data, 0, "log")
    flip(log, BATCH + 100)
    result = dump(data)
    assert result.exit_code == 1
    assert [line["offset"] for line in lines(result)] == list(range(0, 42, 2))
    assert [line["crc_ok"] for line in lines(result)][:3] == [True, False, True]
    assert result.stderr == f"damaged: {log}: byte {BATCH}: batch fails its checksum\n"
    records = dump(data, "--records")
    assert [line["offset"] for line in lines(records)] == [0, 1, *range(4, 42)]


@pytest.mark.parametrize(
    ("byte", "lost"),
    [
        pytest.param(0, [0, 2], id="offset"),
        pytest.param(8, [0, 2], id="huge length"),
        pytest.param(11, [0, 2], id="wrong length"),
        pytest.param(16, [0, 2], id="format"),
        pytest.param(25, [0], id="last offset"),
        pytest.param(4 * BATCH + 16, [8], id="last batch"),
    ],
)
def test_dump_goes_on_with_the_next_batch_that_index_or_segment_names(
    data: Path, byte: int, lost: list[int]
) -> None:
    log = file_of(data, 0, "log")
    flip(log, byte)
    result = dump(data)
    assert result.exit_code == 1
    found = [line["offset"] for line in lines(result) if line["crc_ok"]]
    assert found == [offset for offset in range(0, 42, 2) if offset not in lost]
    assert f"damaged: {log}: byte {byte // BATCH * BATCH}: " in result.stderr
    assert result.stderr.count("\n") == 1


def test_dump_reports_a_bad_batch_though_it_is_the_last_that_is_shown(data: Path) -> None:
    flip(file_of(data, 0, "log"), 100)
    result = dump(data, "--limit", 1)
    assert (result.exit_code, len(lines(result)), result.stderr.count("\n")) == (1, 1, 1)


def test_dump_resumes_at_the_index_behind_two_bad_batches(data: Path) -> None:
    flip(file_of(data, 0, "log"), 100)
    flip(file_of(data, 0, "log"), BATCH + 100)
    found = [(line["offset"], line["crc_ok"]) for line in lines(dump(data, "--until", 8))]
    assert found == [(0, False), (4, True), (6, True)]


def test_dump_takes_a_torn_end_for_unfinished(killed: Path) -> None:
    with file_of(killed, 44, "log").open("ab") as file:
        file.write(b"half a batch")
    result = dump(killed, "--from", 44)
    assert result.exit_code == 0
    assert [line["offset"] for line in lines(result)] == [44]
    assert result.stderr.startswith("unfinished: ")


def test_escape_sequences_in_values_do_not_reach_the_terminal(tmp_path: Path) -> None:
    value = "\x1b]0;title\x07\x9b31m\x7f"
    with millstream.open(tmp_path) as store:
        store.log("orders").append(Record(value.encode(), key=value.encode()))
    result = dump(tmp_path, "--records")
    assert all(character == "\n" or character.isprintable() for character in result.stdout)
    assert lines(result)[0]["value"] == value


def test_a_pipe_that_no_one_reads_ends_the_dump_quietly(data: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [MILLSTREAM, "segments", "dump", "--data", str(data), "--topic", "orders"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


# Verify.


def test_verify_of_a_sound_store_prints_no_finding(data: Path) -> None:
    done = run_process("segments", "verify", "--data", data)
    assert (done.returncode, done.stdout) == (0, "")
    assert "0 damaged, 0 unfinished" in done.stderr


def test_verify_prints_path_position_and_reason(data: Path) -> None:
    log = file_of(data, 0, "log")
    flip(log, BATCH + 100)
    done = run_process("segments", "verify", "--data", data)
    assert done.returncode == 1
    assert done.stdout.startswith(f"damaged: {log}: byte {BATCH}: batch checksum is ")
    assert done.stdout.count("\n") == 1
    assert "1 damaged" in done.stderr


def test_verify_of_an_unclean_store_notes_what_is_unfinished(killed: Path) -> None:
    with file_of(killed, 44, "log").open("ab") as file:
        file.write(b"half a batch")
    result = run("segments", "verify", "--data", killed)
    assert result.exit_code == 0
    assert result.stdout.startswith("unfinished: ")
    assert "0 damaged, 1 unfinished" in result.stderr


def test_verify_prints_json(data: Path) -> None:
    seal = file_of(data, 0, "seal")
    seal.unlink()
    result = run("segments", "verify", "--data", data, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert report["is_sound"] is False
    assert report["bytes"] == sum(path.stat().st_size for path in data.rglob("*.log"))
    (found,) = report["findings"]
    assert (found["kind"], found["path"], found["position"]) == ("damaged", str(seal), None)


def test_verify_draws_its_bar_on_a_terminal_and_nowhere_else(data: Path) -> None:
    leader, follower = os.openpty()
    done = subprocess.run(
        [MILLSTREAM, "segments", "verify", "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=follower,
        timeout=60,
        check=False,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    shown = os.read(leader, 65536)
    os.close(leader)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"verify" in shown
    assert b"0 damaged" in shown


# Reindex.


def test_reindex_prints_what_it_wrote(data: Path) -> None:
    index = file_of(data, 10, "index")
    before = index.read_bytes()
    index.unlink()
    result = run("segments", "reindex", "--data", data)
    assert (result.exit_code, result.stdout) == (0, f"written: {index}\n")
    assert result.stderr == "1 files written, 0 damaged\n"
    assert len(index.read_bytes()) <= len(before)
    assert run("segments", "verify", "--data", data).exit_code == 0


def test_reindex_all_writes_every_index(data: Path) -> None:
    result = run("segments", "reindex", "--data", data, "--all", "--json")
    indexes = sorted(str(path) for path in data.rglob("*.index"))
    assert json.loads(result.stdout) == {"written": indexes, "findings": []}


def test_reindex_reports_a_damaged_log(data: Path) -> None:
    log = file_of(data, 0, "log")
    flip(log, 100)
    file_of(data, 0, "index").unlink()
    before = log.read_bytes()
    result = run("segments", "reindex", "--data", data)
    assert result.exit_code == 1
    assert f"damaged: {log}: byte 0: " in result.stdout
    assert log.read_bytes() == before
    assert not file_of(data, 0, "index").exists()
