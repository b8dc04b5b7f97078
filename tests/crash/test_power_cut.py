"""Whatever moment the power goes: nothing acknowledged is lost, nothing shown is taken back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import pytest

from millstream.config.schema import Durability
from millstream.records.record import Record
from millstream.storage.store import Store
from millstream.testing import CrashState, SimulatedFilesystem, sample_crash_states
from tests.crash.workload import TOPICS, Acked, Seen, damage_found, live, make_store

SEEDS = range(20)
STATES = 100_000 if os.environ.get("MILLSTREAM_LONG") else 10_000


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_at_any_moment_loses_nothing_that_was_promised(seed: int) -> None:
    asyncio.run(_check_states(seed, STATES // len(SEEDS)))


async def _check_states(seed: int, count: int) -> None:
    filesystem = SimulatedFilesystem()
    await live(filesystem, seed)
    submitted = _values(filesystem.trace.notes)
    states = 0
    for state in sample_crash_states(filesystem.trace, count, seed):
        states += 1
        after = state.filesystem()
        await _check(after, state, submitted)
        if states % 10 == 0:
            await _check_crash_while_recovering(after, state, submitted, seed=states)
    assert states == count, "the workload is too short for so many states"


async def _check(
    filesystem: SimulatedFilesystem, state: CrashState, submitted: dict[str, set[bytes]]
) -> None:
    findings = damage_found(filesystem)
    assert not findings, f"{state}: unfinished taken for damaged: {findings}"
    store = make_store(filesystem)
    store.open()
    assert store.damage() == {}, f"{state}: {store.damage()}"
    for topic in TOPICS:
        await _check_log(store, topic, state, submitted[topic])
    await store.close()
    if state.point % 4 == 0:
        await _check_clean(filesystem, state)


async def _check_log(store: Store, topic: str, state: CrashState, submitted: set[bytes]) -> None:
    log = await store.log(topic)
    records = list(log.records())
    assert [record.offset for record in records] == list(range(len(records))), str(state)
    values = [record.value for record in records]
    for note in state.notes:
        if isinstance(note, Acked) and note.topic == topic:
            found = tuple(values[note.offset : note.offset + len(note.values)])
            assert found == note.values, f"{state}: acknowledged and lost: {note}"
        if isinstance(note, Seen) and note.topic == topic:
            found_value = values[note.offset : note.offset + 1]
            assert found_value == [note.value], f"{state}: shown and taken back: {note}"
    assert len(set(values)) == len(values), f"{state}: a record is there twice"
    assert set(values) <= submitted, f"{state}: a record that no one wrote"
    appended = await log.append_records([Record(b"after the crash")])
    assert appended.offset == len(records), str(state)
    assert [r.value for r in log.records(len(records))] == [b"after the crash"], str(state)


async def _check_clean(filesystem: SimulatedFilesystem, state: CrashState) -> None:
    """What was recovered and closed opens without a scan, and is sound to the last byte."""
    store = make_store(filesystem)
    store.open()
    assert store.recovered() == {}, f"{state}: {store.recovered()}"
    for topic in TOPICS:
        log = await store.log(topic)
        assert log.recovered.scanned_bytes == 0, str(state)
        assert [r.value for r in log.records()][-1] == b"after the crash"
    await store.close()
    assert not damage_found(filesystem), str(state)


async def _check_crash_while_recovering(
    after: SimulatedFilesystem, state: CrashState, submitted: dict[str, set[bytes]], seed: int
) -> None:
    """`after` has a trace of its own by now: of the recovery, the appends and the closing."""
    submitted = {topic: values | {b"after the crash"} for topic, values in submitted.items()}
    for again in sample_crash_states(after.trace, 3, seed):
        await _check_promises_only(again.filesystem(), state, submitted, f"{state}, then {again}")


async def _check_promises_only(
    filesystem: SimulatedFilesystem,
    state: CrashState,
    submitted: dict[str, set[bytes]],
    where: str,
) -> None:
    store = make_store(filesystem)
    store.open()
    assert store.damage() == {}, f"{where}: {store.damage()}"
    for topic in TOPICS:
        log = await store.log(topic)
        values = [record.value for record in log.records()]
        for note in state.notes:
            if isinstance(note, Acked) and note.topic == topic:
                found = tuple(values[note.offset : note.offset + len(note.values)])
                assert found == note.values, f"{where}: acknowledged and lost: {note}"
        assert set(values) <= submitted[topic], where
    await store.close()


def _values(notes: Sequence[object]) -> dict[str, set[bytes]]:
    """All values that were appended: the workload waits for each, so each was acknowledged."""
    values: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
    for note in notes:
        if isinstance(note, Acked):
            values[note.topic].update(note.values)
    return values


def test_class_disk_keeps_a_whole_prefix_through_a_power_cut() -> None:
    """It promises nothing about power, but what is left is sound, dense and in order."""
    asyncio.run(_check_disk_class())


async def _check_disk_class() -> None:
    filesystem = SimulatedFilesystem()
    await live(filesystem, 1, durability=Durability.DISK)
    submitted = _values(filesystem.trace.notes)
    for state in sample_crash_states(filesystem.trace, 500, 1):
        store = make_store(state.filesystem())
        store.open()
        assert store.damage() == {}, str(state)
        for topic in TOPICS:
            log = await store.log(topic)
            records = list(log.records())
            assert [record.offset for record in records] == list(range(len(records)))
            assert {record.value for record in records} <= submitted[topic]
        await store.close()
