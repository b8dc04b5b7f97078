"""The start in the page about security works as it is typed, except for the ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from tests.cli.commands import free_port
from tests.cli.nodes import MILLSTREAM, PATIENCE

PAGE = Path(__file__).parents[3] / "docs" / "operating" / "security.md"


def commands() -> list[str]:
    section = PAGE.read_text().partition("## Start\n")[2].partition("\n## ")[0]
    return re.findall(r"^    \$ (.*)$", section, re.MULTILINE)


def test_the_start_of_the_page_works_as_it_is_typed(tmp_path: Path) -> None:
    http, kafka = free_port(), free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if "MILLSTREAM_" not in name},
        "PATH": f"{Path(MILLSTREAM).parent}:{os.environ['PATH']}",
    }
    lines = [line.replace(":8080", f":{http}") for line in commands()]
    [serve] = [line for line in lines if line.startswith("millstream serve")]
    at = lines.index(serve)

    def run(*typed: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(typed)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(*lines[:at])
    node = subprocess.Popen(
        ["bash", "-c", f"exec {serve} --http 127.0.0.1:{http} --kafka 127.0.0.1:{kafka}"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert node.stdout is not None
        while (line := node.stdout.readline()) != "ready\n":
            assert line, "the node has ended"
        assert '"n"' in run(*lines[at + 1 :])
        refused = [*lines[at + 1 : at + 2], "! millstream topic delete orders --yes 2> refusal"]
        run(*refused[:1], "export MILLSTREAM_TOKEN_FILE=./alice.token", *refused[1:])
        assert "User:alice may not delete topic 'orders'" in (tmp_path / "refusal").read_text()
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=PATIENCE)
