"""`millstream config`: effective settings and errors, before a node is started."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.config.keys import KEYS
from millstream.config.loader import load_configuration
from millstream.config.schema import NodeConfig


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def run(*words: str, **variables: str) -> Result:
    environment = {f"MILLSTREAM_{name}": value for name, value in variables.items()}
    return CliRunner().invoke(main, ["config", *words], env=environment)


def write(text: str, name: str = "millstream.toml") -> None:
    Path(name).write_text(text)
    Path(name).chmod(0o600)


# Show.


def test_what_is_set_is_shown_with_where_it_came_from():
    write('[node]\nid = 7\n[kafka]\nidle_ms_max = "5 min"\n')
    result = run("show", "--no-auto-create", "--set", "http.heartbeat_ms=2 s", PARTITIONS="3")
    assert result.exit_code == 0
    assert [re.split(r"  +", line.rstrip()) for line in result.stdout.splitlines()] == [
        ["KEY", "VALUE", "FROM"],
        ["node.id", "7", "millstream.toml, line 2"],
        ["kafka.idle_ms_max", "5 min", "millstream.toml, line 4"],
        ["http.heartbeat_ms", "2 s", "--set"],
        ["topics.auto_create", "false", "--auto-create"],
        ["topics.partitions", "3", "MILLSTREAM_PARTITIONS"],
    ]
    assert "topics.durability" not in result.stdout


def test_where_nothing_is_set_that_is_said_and_nothing_shown():
    result = run("show")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "--all" in result.stderr


def test_everything_is_shown_where_that_is_asked_for():
    result = run("show", "--all")
    shown = [line.split()[0] for line in result.stdout.splitlines()[1:]]
    assert shown == list(KEYS)
    assert all(line.endswith(" default") for line in result.stdout.splitlines()[1:])


def test_programs_get_plain_values_and_origins():
    write("[storage]\nephemeral_bytes_max = '1 MiB'\n")
    result = run("show", "--json", "--partitions", "2", TOPICS_RETENTION_MS="none")
    assert json.loads(result.stdout) == [
        {"key": "topics.partitions", "value": 2, "default": 1,
         "from": {"kind": "flag", "name": "--partitions"}},
        {"key": "topics.retention_ms", "value": None, "default": None,
         "from": {"kind": "variable", "name": "MILLSTREAM_TOPICS_RETENTION_MS"}},
        {"key": "storage.ephemeral_bytes_max", "value": 1_048_576, "default": 268_435_456,
         "from": {"kind": "file", "file": "millstream.toml", "line": 2}},
    ]  # fmt: skip
    everything = json.loads(run("show", "--json", "--all").stdout)
    assert [one["key"] for one in everything] == list(KEYS)


@pytest.mark.parametrize("more", [(), ("--all",)])
def test_what_is_printed_as_a_file_can_be_used_as_one(more: tuple[str, ...]):
    words = ("--set", "topics.retention_bytes=20 GiB", "--kafka", "[::1]:0", "--durability", "disk")
    words += ("--data", 'a "b"\t\x1b[2J # ü', "--set", "topics.dirty_ratio_min=0.125")
    printed = run("show", "--toml", *more, *words).stdout
    assert printed.replace("\n", "").isprintable(), "nothing of it is obeyed by a terminal"
    write(printed, "copy.toml")
    copy = load_configuration(environment={}, config="copy.toml").node
    assert copy.log.retention_bytes == 20 * 1024**3
    assert copy.data == 'a "b"\t\x1b[2J # ü'
    assert (
        copy
        == load_configuration(
            environment={},
            flags={"kafka.listen": "[::1]:0", "topics.durability": "disk", "node.data": copy.data},
            pairs=["topics.retention_bytes=20 GiB", "topics.dirty_ratio_min=0.125"],
        ).node
    )


def test_the_default_printed_as_a_file_is_the_default():
    write(run("show", "--all", "--toml").stdout, "copy.toml")
    assert load_configuration(environment={}, config="copy.toml").node == NodeConfig()


def test_one_can_ask_for_one_format_only():
    assert run("show", "--json", "--toml").exit_code == 2


def test_what_is_wrong_is_not_shown_but_told():
    result = run("show", PARTITIONS="0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: topics.partitions must be between 1 and 100000, got '0' (MILLSTREAM_PARTITIONS)\n"
    )


# Check.


def test_a_file_with_nothing_wrong_is_fine():
    write("[node]\nid = 7\n", "my.toml")
    for words in (["my.toml"], ["--config", "my.toml"]):
        result = run("check", *words)
        assert result.exit_code == 0
        assert result.stdout == "1 settings, no problems (my.toml read)\n"
    assert run("check").stdout == "0 settings, no problems (no file read)\n"


def test_everything_that_is_wrong_is_told_a_line_each():
    write("[kafka]\nconnections_max = 0\n[topcis]\n")
    result = run("check", "--set", "node.id=x")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Error: kafka.connections_max must be between 1 and 1000000, got 0 (millstream.toml, line"
        " 2)",
        "Error: unknown key topcis (millstream.toml, line 3); did you mean [topics]?",
        "Error: node.id must be between 0 and 2147483647, got 'x' (--set)",
    ]


def test_what_is_wrong_is_told_so_that_no_terminal_obeys_it():
    write('[node]\n"\\u001b[2J\\n" = 1\nid = "\\u001b]0;x\\u0007"\n')
    result = run("check")
    assert len(result.stderr.splitlines()) == 2
    assert all(line.isprintable() for line in result.stderr.splitlines())


def test_a_file_that_others_can_write_to_is_warned_about():
    write("")
    Path("millstream.toml").chmod(0o666)
    for verb in ("check", "show"):
        result = run(verb)
        assert result.exit_code == 0
        assert "Warning: millstream.toml is writable by users other than" in result.stderr


def test_there_is_one_file_to_check():
    write("", "a.toml")
    assert run("check", "a.toml", "--config", "a.toml").exit_code == 2


def test_variables_of_other_commands_are_none_of_a_nodes_business():
    result = run("check", SERVER="http://localhost:1", BOOTSTRAP="x:1")
    assert (result.exit_code, result.stderr) == (0, "")
