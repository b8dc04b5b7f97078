"""`millstream pipeline`: errors before Spark is started, and listing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main

GOOD = """
[pipeline]
name = "{name}"
[sources.orders]
topic = "orders"
[targets.archive]
from = "orders"
table = "./archive"
[targets.copy]
from = "orders"
topic = "copy"
"""


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments)])


@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_pipeline_that_is_wrong_ends_in_one_line_before_spark_starts(
    command: str, tmp_path: Path
):
    (tmp_path / "p.toml").write_text(GOOD.format(name="p").replace('"orders"\nt', '"oders"\nt'))
    result = call(command, tmp_path / "p.toml")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {tmp_path}/p.toml: targets.archive.from reads 'oders'")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path):
    result = call("run", tmp_path / "none.toml")
    assert result.exit_code == 2
    assert "none.toml" in result.stderr


@pytest.mark.parametrize("conf", ["spark.x", "=7"])
def test_a_setting_without_a_value_is_wrong_usage(conf: str, tmp_path: Path):
    (tmp_path / "p.toml").write_text(GOOD.format(name="p"))
    result = call("run", tmp_path / "p.toml", "--conf", conf)
    assert result.exit_code == 2
    assert f"must be KEY=VALUE, got {conf!r}" in result.stderr


def test_pipelines_are_listed_with_how_far_they_came(tmp_path: Path):
    (tmp_path / "a.toml").write_text(GOOD.format(name="first"))
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'")
    (tmp_path / "other.py").write_text("raise SystemExit('was run')")
    (tmp_path / "notes.txt").write_text("[pipeline]")
    checkpoint = tmp_path / "millstream-pipelines" / "first" / "copy"
    for kind, last in (("offsets", 12), ("commits", 11)):
        (checkpoint / kind).mkdir(parents=True)
        for number in range(2, last + 1):
            (checkpoint / kind / str(number)).touch()
            (checkpoint / kind / f".{number}.crc").touch()
    result = call("list", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    archive, copy = json.loads(result.stdout)
    assert archive == {
        "file": str(tmp_path / "a.toml"),
        "pipeline": "first",
        "target": "archive",
        "to": "table ./archive",
        "planned": None,
        "committed": None,
        "at_ms": None,
    }
    assert (copy["to"], copy["planned"], copy["committed"]) == ("topic copy", 12, 11)
    assert copy["at_ms"] == int((checkpoint / "commits" / "11").stat().st_mtime * 1000)


def test_a_wrong_pipeline_does_not_hide_the_others(tmp_path: Path):
    (tmp_path / "a.toml").write_text(GOOD.format(name="first"))
    (tmp_path / "b.toml").write_text("[pipeline]\nnane = 'second'")
    (tmp_path / "c.py").write_text("import millstream.spark.pipelines\n1 / 0")
    result = call("list", tmp_path)
    assert result.exit_code == 1
    assert [line.split()[2] for line in result.stdout.splitlines()[1:]] == ["archive", "copy"]
    wrong, broken = result.stderr.splitlines()
    assert "b.toml: pipeline has no key 'nane', the keys are name, " in wrong
    assert "c.py: line 2: ZeroDivisionError" in broken


def test_a_directory_without_pipelines_is_an_empty_list(tmp_path: Path):
    assert json.loads(call("list", tmp_path, "--json").stdout) == []


def test_listing_and_refusing_do_not_load_spark(tmp_path: Path):
    """Loading Spark would add seconds to every error in a file."""
    (tmp_path / "a.toml").write_text(GOOD.format(name="first"))
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from millstream.cli.main import main\n"
        f"result = CliRunner().invoke(main, ['pipeline', 'list', {str(tmp_path)!r}])\n"
        "assert result.exit_code == 0, result.output\n"
        "assert not [name for name in sys.modules if name.startswith('pyspark')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_second_ends_at_once(number: signal.Signals):
    code = (
        "import os, threading\n"
        "from millstream.cli.pipeline.run import stopped_by_signals\n"
        "stop = threading.Event()\n"
        "with stopped_by_signals(stop):\n"
        f"    os.kill(os.getpid(), {number.value})\n"
        "    assert stop.is_set()\n"
        f"    os.kill(os.getpid(), {number.value})\n"
        "    raise SystemExit('went on')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert result.returncode == 128 + number
