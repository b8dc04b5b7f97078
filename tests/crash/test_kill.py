"""A real process is killed with SIGKILL while it writes: what it had acknowledged is there."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.store import Store
from tests.crash.workload import damage_found
from tests.crash.writer_process import SMALL

ROUNDS = 1000 if os.environ.get("MILLSTREAM_LONG") else 50
ROOT = Path(__file__).parents[2]


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    chance = random.Random(1)
    acked: dict[int, str] = {}
    killed_early = 0
    for number in range(ROUNDS):
        is_early = number > 0 and chance.random() < 0.2
        killed_early += is_early
        _write_until_killed(directory, number, chance.randrange(1, 200), acked, is_early=is_early)
        if number % 10 == 9:
            _check(directory, acked)
    _check(directory, acked)
    assert killed_early > 0
    assert len(acked) > ROUNDS


def _write_until_killed(
    directory: str, number: int, lines_max: int, acked: dict[int, str], *, is_early: bool
) -> None:
    """Let a process write until it has said so many lines; early means while it still recovers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.writer_process", directory, str(number)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opening\n"
        if not is_early:
            assert process.stdout.readline() == "open\n"
            for _ in range(lines_max):
                _take(process.stdout.readline(), acked)
        process.send_signal(signal.SIGKILL)
        for line in process.stdout:
            _take(line, acked)
    assert process.returncode == -signal.SIGKILL


def _take(line: str, acked: dict[int, str]) -> None:
    offset, found, value = line.rstrip("\n").partition(" ")
    if found and line.endswith("\n"):
        assert int(offset) not in acked, "an offset was given twice"
        acked[int(offset)] = value


def _check(directory: str, acked: dict[int, str]) -> None:
    assert not damage_found(OsFilesystem(), directory)
    records = asyncio.run(_read(directory))
    assert list(records) == list(range(len(records)))
    assert {offset: records.get(offset) for offset in acked} == acked
    assert len(set(records.values())) == len(records), "a record is there twice"


async def _read(directory: str) -> dict[int, str]:
    async with Store(directory, log_config=SMALL) as store:
        assert store.damage() == {}
        log = await store.log("killed")
        return {record.offset: (record.value or b"").decode() for record in log.records()}
