"""`millstream verify` finds every flipped byte in the files of a node that matters.

The node has topics, producers, transactions, groups, queues and streams. It was stopped, or killed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.audit.verification.ack_index import AckIndex
from millstream.audit.verification.report import Report
from millstream.audit.verification.verification import Verification

ROOT = Path(__file__).parents[2]
FLIPS_PER_FILE = 400 if os.environ.get("MILLSTREAM_LONG") else 12

INSIGNIFICANT = {
    r"lock|.*/lock": "has no content",
    r"spare|.*/spare": "reserves space; only its size counts, and maintenance restores it",
    r"meta\.db-journal": "starts with 0 after each transaction: what follows is not used",
    r"meta\.db-shm": "SQLite builds it again when it opens a file of version 1",
    r".*/checkpoint": "a flipped byte cannot be told from a late or torn write, which is allowed:"
    " less of the log is attested, and no record is lost",
}
"""Files in which a flipped byte is not damage, as `docs/operating/verifying.md` lists them."""

UNUSED_AFTER_A_KILL = {
    r"meta\.db": "bytes that no row uses; after a clean stop a digest covers the whole file",
}
"""Files of which only some bytes count while nobody has closed them."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A data directory after a stop, and one after a kill."""
    path = tmp_path_factory.mktemp("node")
    subprocess.run(
        [sys.executable, "-m", "tests.crash.full_node", str(path)],
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    return {"stopped": path / "stopped", "killed": path / "killed"}


def verify(data: Path) -> Report:
    with AckIndex() as acks:
        return Verification(acks).verify_directory(str(data))


def reason(name: str, table: dict[str, str]) -> str | None:
    return next((why for pattern, why in table.items() if re.fullmatch(pattern, name)), None)


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_sound_directory_has_no_damage(directories: dict[str, Path], ending: str) -> None:
    report = verify(directories[ending])
    assert not report.damaged, report.findings
    names = {file.name for file in directories[ending].rglob("*") if file.is_file()}
    assert {"meta.db", "meta.db-checkpoint", "node.json", "clock.json", "partition.json"} <= names
    assert {"producers.snapshot", "meta.db-journal"} <= names
    logs = {path.name.split("-")[0] for path in directories[ending].glob("__state/topics/*")}
    assert logs == {"groups", "transactions", "streams", "queue"}


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_verify_finds_every_flipped_byte_that_matters(
    directories: dict[str, Path], ending: str
) -> None:
    data = directories[ending]
    rng = random.Random(11)
    checked = set()
    for file in sorted(path for path in data.rglob("*") if path.is_file()):
        name = str(file.relative_to(data))
        sound = file.read_bytes()
        missed = []
        for position in rng.sample(range(len(sound)), min(len(sound), FLIPS_PER_FILE)):
            damaged = bytearray(sound)
            damaged[position] ^= 1 << rng.randrange(8)
            file.write_bytes(damaged)
            report = verify(data)
            if not report.damaged:
                missed.append(position)
            elif not reason(name, INSIGNIFICANT):
                assert any(name in finding.path for finding in report.findings), (
                    f"byte {position} of {name}: {report.findings}"
                )
        file.write_bytes(sound)
        if reason(name, INSIGNIFICANT) is None:
            may_miss = ending == "killed" and reason(name, UNUSED_AFTER_A_KILL)
            assert may_miss or not missed, f"{name}: bytes {missed} of {len(sound)}"
            checked.add(file.name if file.suffix in (".json", ".snapshot") else file.suffix)
    assert {"partition.json", "node.json", "clock.json", "producers.snapshot"} <= checked
    assert {".log", ".db", ".db-checkpoint"} <= checked
    assert ending == "killed" or {".seal", ".index"} <= checked


def test_verify_reports_metadata_that_does_not_fit_the_logs(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(directories["stopped"], data)
    shutil.copytree(data / "topics" / "orders", data / "topics" / "copied")
    report = verify(data)
    assert [finding.path for finding in report.findings] == [f"{data}/topics/copied/0"]
    assert "which is not in the metadata" in report.findings[0].message
    for name in ("meta.db", "meta.db-checkpoint", "meta.db-journal"):
        (data / name).unlink()
    report = verify(data)
    assert report.findings[0].path == f"{data}/meta.db"
    assert "is missing or empty" in report.findings[0].message


def test_verify_reports_a_damaged_write_ahead_log_of_version_1(tmp_path: Path) -> None:
    golden = ROOT / "tests" / "metadata" / "golden" / "v1-killed"
    shutil.copytree(golden, tmp_path / "data")
    shutil.copytree(
        ROOT / "tests" / "storage" / "golden" / "v1", tmp_path / "data", dirs_exist_ok=True
    )
    assert not verify(tmp_path / "data").damaged
    wal = tmp_path / "data" / "meta.db-wal"
    damaged = bytearray(wal.read_bytes())
    damaged[5000] ^= 1
    wal.write_bytes(damaged)
    assert [finding.path for finding in verify(tmp_path / "data").findings] == [str(wal)]
