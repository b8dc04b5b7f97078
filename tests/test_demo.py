"""`make demo` runs until Ctrl-C on a terminal, and otherwise ends by itself."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream import Client

DEMO = Path(__file__).parents[1] / "examples/demo"
PATIENCE_SECONDS = 120

LAST_CHAPTER = """
import fcntl, sys, termios
if sys.stdin.isatty():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # So that Ctrl-C goes to this process.
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import console
from confluent_kafka.admin import AdminClient, NewTopic
from node import Node
with Node(Path(sys.argv[2])) as node:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(console.TOPIC, 3, 1)])[console.TOPIC].result(60)
    console.present(node)
"""
"""The last chapter alone."""


class Screen:
    """Output of a process to its terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.text = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until the output matches a pattern."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, self.text
            if select.select([self._descriptor], [], [], 1)[0]:
                self.text += os.read(self._descriptor, 65_536).decode()
        return found

    def press(self, key: bytes) -> None:
        """Type something."""
        os.write(self._descriptor, key)


@contextmanager
def last_chapter_on_a_terminal(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Screen]]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", LAST_CHAPTER, str(DEMO), str(tmp_path)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, Screen(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_on_a_terminal_the_node_stays_and_is_busy_until_ctrl_c(tmp_path: Path) -> None:
    with last_chapter_on_a_terminal(tmp_path) as (process, screen):
        url = screen.until(r"(http://127\.0\.0\.1:\d+)/\r")[1]
        screen.until("Press Ctrl-C to end the demo")
        with Client(url) as client:
            client.create_queue("mail")
            for topic in ("clicks", "mail"):
                with client.follow(topic, from_="earliest") as records:
                    assert next(iter(records)).value
        screen.press(b"\x03")
        screen.until("exit status 0")
        assert process.wait(PATIENCE_SECONDS) == 0


def test_without_a_terminal_the_node_ends_by_itself(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LAST_CHAPTER, DEMO, tmp_path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "exit status 0" in result.stdout
    assert "Ctrl-C" not in result.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_leaves_nothing_behind(number: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, DEMO],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process:
        said = ""
        while "ready after" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        process.send_signal(number)
        process.stdout.read()
    assert process.returncode == 1
    kafka = re.search(r"^    kafka (\S+)$", said, re.MULTILINE)
    assert kafka
    assert not list(tmp_path.iterdir())
    assert not _is_listening(kafka[1])


def _is_listening(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0
