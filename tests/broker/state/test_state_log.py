"""The state log: failures, power cuts and compaction."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.broker.state import state_log
from millstream.broker.state.state_log import StateEntry, StateLog
from millstream.config.schema import LogConfig
from millstream.errors import (
    BatchTooLarge,
    CorruptData,
    DiskFull,
    LogClosed,
    LogOffline,
    MillstreamError,
)
from millstream.records.record import Record
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.store import Store
from millstream.testing import (
    Fault,
    FaultyFilesystem,
    ManualClock,
    SimulatedFilesystem,
    sample_crash_states,
    sweep,
)
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer
from tests.storage.logs import HeldSyncer, turns

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=128)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def make_store(
    filesystem: Filesystem, *, config: LogConfig | None = None, seed: int = 0, syncer: Any = None
) -> Store:
    store = Store(
        "/state",
        log_config=config,
        filesystem=filesystem,
        clock=ManualClock(),
        background=SeededBackground(seed),
        syncer=syncer or SeededSyncer(seed),
    )
    store.open()
    return store


async def open_map(store: Store, dead_bytes_min: int = 1 << 20) -> StateLog:
    return await StateLog.open(store, "map", clock=ManualClock(), dead_bytes_min=dead_bytes_min)


async def reopened(filesystem: SimulatedFilesystem) -> dict[bytes, bytes]:
    """Return the entries that a later process reads from the disk."""
    store = make_store(filesystem.copy())
    entries = (await open_map(store)).entries
    await store.close()
    return entries


def test_what_was_put_last_is_found_after_opening_again() -> None:
    async def work() -> None:
        filesystem = SimulatedFilesystem()
        store = make_store(filesystem)
        kept = await open_map(store)
        await kept.put([(b"a", b"1"), (b"b", b"1")])
        await kept.put([(b"a", b"2"), (b"c", b"")])
        assert kept.entries == {b"a": b"2", b"b": b"1", b"c": b""}
        await kept.close()
        await store.close()
        assert await reopened(filesystem) == kept.entries

    run(work())


def test_a_key_that_was_deleted_stays_so() -> None:
    async def work() -> None:
        filesystem = SimulatedFilesystem()
        kept = await open_map(make_store(filesystem))
        await kept.put([(b"a", b"1"), (b"b", b"1")])
        await kept.put([(b"a", None), (b"never there", None)])
        assert kept.entries == {b"b": b"1"}
        assert await reopened(filesystem.crash()) == {b"b": b"1"}

    run(work())


def test_puts_of_one_turn_share_one_batch_and_one_sync() -> None:
    async def work() -> None:
        store = make_store(SimulatedFilesystem())
        kept = await open_map(store)
        await asyncio.gather(*(kept.put([(b"%d" % n, b"v")]) for n in range(100)))
        counters = store.get("map").counters
        assert (counters.appends, counters.records) == (1, 100)
        assert len(kept.entries) == 100

    run(work())


def test_an_entry_shows_only_when_it_is_durable() -> None:
    async def work() -> None:
        filesystem, syncer = SimulatedFilesystem(), HeldSyncer()
        store = make_store(filesystem, syncer=syncer)
        kept = await open_map(store)
        await kept.put([(b"a", b"1")])  # The first commit syncs the directory too, in a thread.
        put = kept.put([(b"a", b"2")])
        await turns()
        assert kept.entries == {b"a": b"1"}
        assert not put.done()
        syncer.sync_now()
        syncer.tell()
        await put
        assert kept.entries == {b"a": b"2"}

    run(work())


def test_of_puts_in_flight_the_later_wins() -> None:
    async def work() -> None:
        filesystem = SimulatedFilesystem()
        kept = await open_map(make_store(filesystem))
        puts = []
        for number in range(10):
            puts.append(kept.put([(b"a", b"%d" % number), (b"a", b"%d!" % number)]))
            if number % 3 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*puts)
        assert kept.entries == {b"a": b"9!"}
        assert await reopened(filesystem.crash()) == {b"a": b"9!"}

    run(work())


def test_nothing_to_put_is_done_at_once() -> None:
    async def work() -> None:
        kept = await open_map(make_store(SimulatedFilesystem()))
        assert kept.put([]).done()

    run(work())


def test_a_put_that_no_batch_can_hold_is_refused_and_its_neighbours_are_not() -> None:
    async def work() -> None:
        config = LogConfig(batch_size_max=1000)
        kept = await open_map(make_store(SimulatedFilesystem(), config=config))
        before = kept.put([(b"a", b"1")])
        large = kept.put([(b"b", b"x" * 500), (b"c", b"x" * 500)])
        after = kept.put([(b"d", b"1")])
        with pytest.raises(BatchTooLarge, match="a put must have at most 939 bytes, got 1066"):
            await large
        await asyncio.gather(before, after)
        assert kept.entries == {b"a": b"1", b"d": b"1"}

    run(work())


def test_the_largest_put_that_is_allowed_fits_a_batch() -> None:
    async def work() -> None:
        config = LogConfig(batch_size_max=1000)
        kept = await open_map(make_store(SimulatedFilesystem(), config=config))
        await kept.put([(b"a", b"x" * (1000 - 61 - 32 - 1))])
        with pytest.raises(BatchTooLarge):
            await kept.put([(b"a", b"x" * (1000 - 61 - 32))])

    run(work())


def test_gathered_puts_that_are_too_many_for_one_batch_take_several() -> None:
    async def work() -> None:
        store = make_store(SimulatedFilesystem())
        kept = await open_map(store)
        values = [(b"%d" % n, b"x" * 300_000) for n in range(10)]
        await asyncio.gather(*(kept.put([entry]) for entry in values))
        assert kept.entries == dict(values)
        assert store.get("map").counters.appends == 4

    run(work())


def test_a_caller_that_stops_waiting_does_not_call_its_put_off() -> None:
    async def work() -> None:
        kept = await open_map(make_store(SimulatedFilesystem()))
        put, other = kept.put([(b"a", b"1")]), kept.put([(b"b", b"1")])
        put.cancel()
        await other
        assert kept.entries == {b"a": b"1", b"b": b"1"}

    run(work())


# Failures.


def test_on_a_full_disk_a_put_fails_and_the_map_stays_as_it_was() -> None:
    async def work() -> None:
        filesystem = SimulatedFilesystem()
        kept = await open_map(make_store(filesystem))
        await kept.put([(b"a", b"1"), (b"b", b"1")])
        filesystem.bytes_max = filesystem.bytes_used
        with pytest.raises(DiskFull):
            await kept.put([(b"a", b"x" * 2_000_000), (b"b", None)])
        assert kept.entries == {b"a": b"1", b"b": b"1"}
        filesystem.free(10_000_000)
        await kept.put([(b"a", b"3")])
        assert kept.entries == {b"a": b"3", b"b": b"1"}
        assert await reopened(filesystem.crash()) == {b"a": b"3", b"b": b"1"}

    run(work())


def test_after_a_failed_sync_every_put_fails_and_says_why() -> None:
    async def work() -> None:
        fault = Fault(call=2, only={"sync"}, path="/state/topics/map/0/0")
        kept = await open_map(make_store(FaultyFilesystem(SimulatedFilesystem(), fault)))
        await kept.put([(b"a", b"1")])
        with pytest.raises(LogOffline):
            await kept.put([(b"a", b"2")])
        with pytest.raises(LogOffline, match="offline until it is opened again"):
            await kept.put([(b"b", b"2")])
        assert isinstance(kept.offline, LogOffline)
        assert kept.entries == {b"a": b"1"}
        await kept.close()

    run(work())


def test_a_damaged_log_is_refused_rather_than_read_in_part() -> None:
    async def work() -> None:
        filesystem = SimulatedFilesystem()
        store = make_store(filesystem)
        kept = await open_map(store)
        await kept.put([(b"a", b"1")])
        await kept.put([(b"a", b"2")])
        await store.close()
        path = next(path for path in filesystem.paths() if path.endswith(".log"))
        filesystem.flip_bit(path, 8 * 70)
        with pytest.raises(CorruptData):
            await open_map(make_store(filesystem))

    run(work())


def test_a_record_without_a_key_is_no_entry() -> None:
    async def work() -> None:
        store = make_store(SimulatedFilesystem())
        await (await store.log("map")).append_records([Record(b"value")])
        with pytest.raises(CorruptData, match="record 0 has no key"):
            await open_map(store)

    run(work())


def test_a_closed_map_has_finished_its_puts_and_takes_no_more() -> None:
    async def work() -> None:
        kept = await open_map(make_store(SimulatedFilesystem()))
        put = kept.put([(b"a", b"1")])
        await kept.close()
        assert put.done()
        assert kept.entries == {b"a": b"1"}
        with pytest.raises(LogClosed):
            await kept.put([(b"a", b"2")])

    run(work())


# Compaction.


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "REWRITE_ENTRIES_MAX", 3)
    monkeypatch.setattr(state_log, "REWRITE_BYTES_MAX", 200)


async def idle(kept: StateLog) -> None:
    while task := kept._compacting:
        await task


def test_compaction_keeps_the_log_in_proportion_to_what_is_live(small_chunks: None) -> None:
    async def work() -> None:
        filesystem = SimulatedFilesystem()
        store = make_store(filesystem, config=SMALL)
        kept = await open_map(store, dead_bytes_min=2000)
        await kept.put([(b"k%d" % n, b"x" * 20) for n in range(20)])
        for number in range(300):
            await kept.put([(b"hot", b"%d" % number)])
        await idle(kept)
        log = store.get("map")
        assert kept.compactions >= 3
        assert log.end_offset - log.start_offset < 150
        assert len(log.segments) < 12
        assert await reopened(filesystem.crash()) == kept.entries
        assert kept.entries[b"hot"] == b"299"
        assert len(kept.entries) == 21

    run(work())


def test_a_map_that_became_empty_forgets_all_of_its_log() -> None:
    async def work() -> None:
        filesystem = SimulatedFilesystem()
        store = make_store(filesystem)
        kept = await open_map(store, dead_bytes_min=1)
        await kept.put([(b"a", b"1")])
        await kept.put([(b"a", None)])
        await idle(kept)
        log = store.get("map")
        assert (log.start_offset, log.end_offset) == (2, 2)
        assert await reopened(filesystem.crash()) == {}

    run(work())


def test_an_entry_almost_as_large_as_a_batch_is_rewritten_alone(small_chunks: None) -> None:
    async def work() -> None:
        config = LogConfig(batch_size_max=1000)
        store = make_store(SimulatedFilesystem(), config=config)
        kept = await open_map(store, dead_bytes_min=5000)
        for key in (b"a", b"b", b"c"):
            await kept.put([(key, b"x" * 900)])
            await kept.put([(key + b"small", b"x")])
        for number in range(300):
            await kept.put([(b"hot", b"%d" % number)])
        await idle(kept)
        assert kept.compactions >= 1

    run(work())


def test_a_compaction_that_finds_the_disk_full_is_tried_again_later(small_chunks: None) -> None:
    async def work() -> None:
        filesystem = SimulatedFilesystem()
        store = make_store(filesystem, config=SMALL)
        kept = await open_map(store, dead_bytes_min=1 << 30)
        for number in range(50):
            await kept.put([(b"%d" % (number % 10), b"x" * 20)])
        kept._dead_bytes_min = 100
        filesystem.bytes_max = filesystem.bytes_used
        kept._compact_if_worthwhile()
        await idle(kept)
        assert kept.compactions == 0
        assert len(kept.entries) == 10
        filesystem.free(1_000_000)
        for number in range(10):
            await kept.put([(b"%d" % number, b"y")])
        await idle(kept)
        assert kept.compactions >= 1
        assert await reopened(filesystem.crash()) == kept.entries

    run(work())


def test_closing_stops_a_compaction_between_two_chunks(small_chunks: None) -> None:
    async def work() -> None:
        filesystem = SimulatedFilesystem()
        store = make_store(filesystem, config=SMALL)
        kept = await open_map(store, dead_bytes_min=1 << 30)
        for _ in range(4):
            await kept.put([(b"%d" % number, b"x" * 20) for number in range(100)])
        kept._dead_bytes_min = 100
        kept._compact_if_worthwhile()
        assert kept._compacting
        for _ in range(10):
            await asyncio.sleep(0)
        await kept.close()
        await store.close()
        assert store.get("map").start_offset == 0
        assert await reopened(filesystem) == kept.entries

    run(work())


def test_what_was_committed_but_not_applied_when_a_compaction_begins_is_kept() -> None:
    async def work() -> None:
        filesystem, syncer = SimulatedFilesystem(), HeldSyncer()
        store = make_store(filesystem, syncer=syncer)
        kept = await open_map(store, dead_bytes_min=1 << 30)
        await kept.put([(b"a", b"1"), (b"old", b"x" * 1000)])
        flying = kept.put([(b"new", b"1"), (b"a", None), (b"old", None)])
        await turns()
        syncer.sync_now()
        kept._dead_bytes_min = 1
        kept._logged_bytes += 10_000
        kept._compact_if_worthwhile()
        syncer.tell()  # The log has committed, and calls back after the compaction has started.
        while kept._compacting:
            await turns()
            if syncer._done:
                syncer.sync_now()
                syncer.tell()
        assert flying.done()
        assert kept.compactions == 1
        assert kept.entries == {b"new": b"1"}
        assert await reopened(filesystem.crash()) == {b"new": b"1"}

    run(work())


# The map and a model of it.

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.one_of(st.none(), st.binary(max_size=40))
STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4),
        st.sampled_from(["turn", "turns", "full", "free", "crash", "close"]),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1000))
def test_the_map_is_what_a_dictionary_is(steps: list[Any], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_log, "REWRITE_ENTRIES_MAX", 1)
        run(_compare(steps, seed))


async def _compare(steps: list[Any], seed: int) -> None:
    filesystem = SimulatedFilesystem()
    store = make_store(filesystem, config=SMALL, seed=seed)
    kept = await open_map(store, dead_bytes_min=100)
    certain: dict[bytes, bytes] = {}
    flying: list[tuple[list[StateEntry], asyncio.Future[None]]] = []
    for step in steps:
        if isinstance(step, list):
            flying.append((step, kept.put(step)))
        elif step == "turn":
            await asyncio.sleep(0)
        elif step == "turns":
            await turns(10)
        elif step == "full":
            filesystem.bytes_max = filesystem.bytes_used
        elif step == "free":
            filesystem.bytes_max = 1 << 40
        else:
            if step == "close":
                filesystem.bytes_max = 1 << 40
                await kept.close()
                await store.close()
            settled = [(entries, put) for entries, put in flying if put.done()]
            certain = _applied(certain, settled)
            allowed = _all_outcomes(certain, [e for e, put in flying if not put.done()])
            flying.clear()
            if step == "crash":
                await _abandon(kept, filesystem)
                filesystem = filesystem.crash(seed)
                filesystem.bytes_max = 1 << 40
            store = make_store(filesystem, config=SMALL, seed=seed)
            kept = await open_map(store, dead_bytes_min=100)
            assert kept.entries in allowed
            certain = dict(kept.entries)
    filesystem.bytes_max = 1 << 40
    await kept.close()
    await store.close()
    assert kept.entries == _applied(certain, flying)
    assert await reopened(filesystem) == kept.entries


def _applied(
    entries: dict[bytes, bytes], puts: list[tuple[list[StateEntry], asyncio.Future[None]]]
) -> dict[bytes, bytes]:
    """Return the map after the puts that did not fail."""
    after = dict(entries)
    for changes, put in puts:
        if put.exception() is None:
            _change(after, changes)
    return after


def _all_outcomes(
    certain: dict[bytes, bytes], unsettled: list[list[StateEntry]]
) -> list[dict[bytes, bytes]]:
    """Return what a power cut may leave: the log is cut at some batch, so a prefix of the puts."""
    outcomes = [dict(certain)]
    for changes in unsettled:
        after = dict(outcomes[-1])
        _change(after, changes)
        outcomes.append(after)
    return outcomes


def _change(entries: dict[bytes, bytes], changes: list[StateEntry]) -> None:
    for key, value in changes:
        entries.pop(key, None)
        if value is not None:
            entries[key] = value


async def _abandon(kept: StateLog, filesystem: SimulatedFilesystem) -> None:
    """Cut off the process: nothing that it still does may reach the disk or the test."""
    kept._is_closed = True
    if kept._compacting:
        kept._compacting.cancel()
        await asyncio.gather(kept._compacting, return_exceptions=True)


# Power cuts.


@dataclass(frozen=True)
class Acked:
    number: int


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_at_any_moment_leaves_whole_puts_and_all_acknowledged_ones(
    seed: int, small_chunks: None
) -> None:
    run(_check_power_cuts(seed))


async def _check_power_cuts(seed: int) -> None:
    filesystem = SimulatedFilesystem()
    puts = await _live(filesystem, seed)
    compacted = 0
    for state in sample_crash_states(filesystem.trace, 150, seed):
        store = make_store(state.filesystem(), config=SMALL, seed=seed)
        kept = await open_map(store, dead_bytes_min=300)
        acked = {note.number for note in state.notes if isinstance(note, Acked)}
        _check_state(kept.entries, puts, acked, str(state))
        compacted += store.get("map").start_offset > 0
        await kept.put([(b"after", b"the crash")])
        await idle(kept)
        await kept.close()
        await store.close()
    assert compacted > 10, "the power was never cut around a compaction"


async def _live(filesystem: SimulatedFilesystem, seed: int) -> list[list[StateEntry]]:
    """Run several writers, each with its own keys, in pairs that must never be separated."""
    chance = random.Random(seed)
    puts: list[list[StateEntry]] = []
    store = make_store(filesystem, config=SMALL, seed=seed)
    kept = await open_map(store, dead_bytes_min=300)

    async def side(name: bytes) -> None:
        for _ in range(30):
            number = len(puts)
            key = name + b"%d" % chance.randrange(3)
            value = None if chance.random() < 0.2 else b"%d" % number + b"." * chance.randrange(60)
            puts.append([(key + b"L", value), (key + b"R", value)])
            await kept.put(puts[number])
            filesystem.note(Acked(number))

    await asyncio.gather(side(b"x"), side(b"y"), side(b"z"))
    await idle(kept)
    assert kept.compactions >= 2
    return puts


def _check_state(
    entries: dict[bytes, bytes], puts: list[list[StateEntry]], acked: set[int], where: str
) -> None:
    for left in {put[0][0] for put in puts}:
        right = left[:-1] + b"R"
        found = entries.get(left)
        assert found == entries.get(right), f"{where}: half of a put: {left!r}"
        history = [n for n, put in enumerate(puts) if put[0][0] == left]
        last_acked = max((n for n in history if n in acked), default=-1)
        allowed = [puts[n][0][1] for n in history if n >= last_acked]
        if last_acked < 0:
            allowed.append(None)
        assert found in allowed, f"{where}: {left!r} is {found!r}, must be one of {allowed}"


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_whatever_call_fails_nothing_acknowledged_is_lost(error: int, small_chunks: None) -> None:
    for fault in sweep(error=error, only={"sync", "write_at", "create", "rename"}):
        run(_check_fault(fault))


async def _check_fault(fault: Fault) -> None:
    inner = SimulatedFilesystem()
    certain: dict[bytes, bytes] = {}
    uncertain: list[list[StateEntry]] = []
    try:
        store = make_store(FaultyFilesystem(inner, fault), config=SMALL)
        kept = await open_map(store, dead_bytes_min=200)
    except MillstreamError:
        return
    for count in range(20):
        entries: list[StateEntry] = [(b"%d" % (count % 3), b"%d" % count)]
        try:
            await kept.put(entries)
            _change(certain, entries)
        except MillstreamError:
            uncertain.append(entries)
    await idle(kept)
    await kept.close()
    assert kept.entries == certain, fault.describe()
    assert not uncertain or fault.hits, fault.describe()
    found = await reopened(inner.crash())
    for key in {*found, *certain}:
        tried = [dict(entries).get(key) for entries in uncertain]
        assert found.get(key) in [certain.get(key), *tried], fault.describe()
