"""Every call to the disk fails, once or forever: nothing acknowledged is lost, nothing hangs."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from millstream.config.schema import LogConfig, StoreConfig
from millstream.errors import MillstreamError
from millstream.records.record import Record
from millstream.storage.store import Store
from millstream.testing import (
    GROWING,
    OPENING,
    CrashState,
    Fault,
    FaultyFilesystem,
    ManualClock,
    SimulatedFilesystem,
    sweep,
)
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.crash_states import crash_states
from millstream.testing.disk.seeded_syncer import SeededSyncer

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)

KINDS = {
    "EIO": {"error": errno.EIO},
    "ENOSPC": {"error": errno.ENOSPC, "only": GROWING},
    "EMFILE": {"error": errno.EMFILE, "only": OPENING},
    "EROFS": {"error": errno.EROFS, "only": GROWING},
    "short write": {"kind": "short write"},
}


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_loses_nothing_and_hangs_nothing(kind: str, forever: bool) -> None:
    hits = 0
    for fault in sweep(forever=forever, **KINDS[kind]):
        asyncio.run(asyncio.wait_for(_check(fault), timeout=60))
        hits += bool(fault.hits)
    assert hits > (10 if kind != "short write" else 5), "the sweep reached hardly any call"


async def _check(fault: Fault) -> None:
    disk = SimulatedFilesystem()
    acked, clear = await _live(FaultyFilesystem(disk, fault))
    assert clear, f"{fault.describe()}: an error that is not one of ours"
    if not fault.hits:
        assert len(acked) == 12, "without a fault all appends succeed"
    if fault.kind == "short write":
        assert len(acked) == 12, f"{fault.describe()}: a short write is no error"
    await _check_acked(disk.copy(), acked, f"{fault.describe()}, process died")
    for state in _power_cuts(disk):
        await _check_acked(state.filesystem(), acked, f"{fault.describe()}, {state}")


def _power_cuts(disk: SimulatedFilesystem) -> list[CrashState]:
    """The states that a power cut at the very end could leave, some of them."""
    states = list(crash_states(disk.trace, seed=1, points=[len(disk.trace.events)]))
    return [states[0], *random.Random(1).sample(states, min(3, len(states)))]


async def _live(filesystem: FaultyFilesystem) -> tuple[dict[int, bytes], bool]:
    """Append through two lives of a store; return what was acknowledged."""
    acked: dict[int, bytes] = {}
    try:
        for life in range(2):
            store = _store(filesystem)
            store.open()
            try:
                await _append_all(store, life, acked)
            finally:
                await store.close()
    except MillstreamError as error:
        return acked, bool(str(error))
    except OSError:
        return acked, False
    return acked, True


async def _append_all(store: Store, life: int, acked: dict[int, bytes]) -> None:
    log = await store.log("a")
    for number in range(6):
        value = f"{life}.{number}:".encode() + b"x" * (100 * (number % 3))
        try:
            appended = await log.append_records([Record(value)])
        except MillstreamError:
            continue
        assert appended.offset not in acked, "an offset was given twice"
        acked[appended.offset] = value
        assert [r.value for r in log.records(appended.offset)][:1] == [value]


async def _check_acked(disk: SimulatedFilesystem, acked: dict[int, bytes], where: str) -> None:
    store = _store(disk)
    store.open()
    assert store.damage() == {}, f"{where}: {store.damage()}"
    log = await store.log("a")
    found = {record.offset: record.value for record in log.records()}
    lost = {offset: value for offset, value in acked.items() if found.get(offset) != value}
    assert not lost, f"{where}: acknowledged and lost: {lost}"
    appended = await log.append_records([Record(b"on")])
    assert appended.offset == len(found), where
    await store.close()


def _store(filesystem: object) -> Store:
    return Store(
        "/data",
        config=StoreConfig(),
        log_config=SMALL,
        filesystem=filesystem,
        clock=ManualClock(),
        background=SeededBackground(7),
        syncer=SeededSyncer(7),
    )
