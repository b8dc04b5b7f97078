"""The sessions in the guide and the README: each command is run in a shell against a node.

All output except times is compared.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.nodes import MILLSTREAM, PATIENCE, Node

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guides/command-line.md"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z|\b1[78]\d{11}\b")


def session(page: Path = GUIDE) -> list[tuple[str, str]]:
    """Return every command of a page with its output."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S)
    found = []
    for step in re.split(r"^\$ ", "".join(blocks), flags=re.M)[1:]:
        command, _, output = step.partition("\n")
        found.append((command, output))
    return found


def alike(text: str) -> str:
    """Return the text with times replaced and trailing spaces removed."""
    return "\n".join(TIME.sub("TIME", line).rstrip() for line in text.splitlines())


@pytest.mark.parametrize(("page", "count"), [(GUIDE, 20), (ROOT / "README.md", 3)])
def test_a_session_happens_as_it_is_told(page: Path, count: int, tmp_path: Path) -> None:
    steps = session(page)
    assert len(steps) >= count
    with Node(tmp_path / "data") as node:
        environment = {
            **os.environ,
            "MILLSTREAM_SERVER": node.url,
            "PATH": f"{os.path.dirname(MILLSTREAM)}:{os.environ['PATH']}",
        }
        status = 0
        for command, expected in steps:
            done = subprocess.run(
                ["bash", "-c", command.replace("$?", str(status))],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            status = done.returncode
            assert alike(done.stdout) == alike(expected), command


def test_every_noun_that_asks_a_node_is_in_the_guide() -> None:
    text = " ".join(command for command, _ in session())
    for noun in ("topic", "group", "queue"):
        assert f"millstream {noun} " in text
