"""Shell completion: the scripts, and the names that they offer."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

import millstream
from millstream.testing.broker import RunningBroker
from tests.cli.commands import run
from tests.cli.nodes import MILLSTREAM, PATIENCE


def offered(*words: str, server: str = "http://127.0.0.1:1") -> list[str]:
    """Return the completions that a shell offers for the last of these words."""
    result = subprocess.run(
        [MILLSTREAM],
        env={
            **os.environ,
            "_MILLSTREAM_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["millstream", *words]),
            "COMP_CWORD": str(len(words)),
            "MILLSTREAM_SERVER": server,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.stderr == ""
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_calls_the_command(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_MILLSTREAM_COMPLETE={shell}_complete" in result.stdout


def test_a_shell_takes_its_script() -> None:
    bash = shutil.which("bash")
    assert bash
    script = run("completion", "bash").stdout
    found = subprocess.run(
        [bash, "--norc", "-c", f"{script}\ncomplete -p millstream"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_millstream_completion" in found.stdout


def test_another_shell_is_wrong_usage() -> None:
    assert run("completion", "tcsh").exit_code == 2


def test_commands_and_options_are_offered() -> None:
    assert offered("to") == ["topic"]
    assert {"create", "tail", "delete-records"} <= set(offered("topic", ""))
    assert "--partitions" in offered("topic", "create", "orders", "--p")


def test_names_of_the_node_are_offered(node: RunningBroker) -> None:
    with millstream.Client(node.url) as client:
        for name in ("orders", "orders-eu", "mail"):
            client.create_topic(name)
        client.create_queue("jobs")
    server = node.url
    assert offered("topic", "describe", "or", server=server) == ["orders", "orders-eu"]
    assert offered("topic", "tail", "", server=server) == ["jobs", "mail", "orders", "orders-eu"]
    assert offered("queue", "work", "", server=server) == ["jobs"]
    assert offered("group", "reset", "g", "--topic", "m", server=server) == ["mail"]
    assert offered("topic", "create", "or", server=server) == []
    assert offered("topic", "describe", "--server", server, "ma") == ["mail"]


@pytest.mark.parametrize("server", ["http://127.0.0.1:1", "no address"])
def test_where_no_node_answers_nothing_is_offered_and_nothing_said(server: str) -> None:
    assert offered("topic", "describe", "", server=server) == []
