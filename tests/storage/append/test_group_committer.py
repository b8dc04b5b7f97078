"""One sync serves all appends that wait for it, and a failing log does not affect others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millstream.storage.append.group_committer import GroupCommitter
from millstream.storage.disk.filesystem import File
from millstream.storage.disk.syncer import SyncCallback
from tests.in_loop import in_loop


class HeldExecutor:
    """Holds all work until the test runs it."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.held: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self.held.append((work, future))
        return future

    def close(self) -> None:
        pass

    async def let_go(self, number: int = 0) -> None:
        """Run one piece of work, and let the loop process the result."""
        work, future = self.held.pop(number)
        future.set_result(work())
        await turns()


class HeldSyncer:
    """Stands in for the kernel: syncs end when the test says so."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held: list[tuple[Sequence[File], SyncCallback]] = []

    def has_capacity(self, count: int) -> bool:
        return len(self.held) + count <= self.room

    def sync(self, files: Sequence[File], done: SyncCallback) -> None:
        self.held.append((files, done))

    def close(self) -> None:
        pass

    def let_go(self, error: OSError | None = None) -> None:
        _, done = self.held.pop(0)
        done(error)


class Log:
    """A log that counts what a commit makes durable."""

    def __init__(
        self, name: str, error: Exception | None = None, *, is_plain: bool = False
    ) -> None:
        self.name = name
        self.error = error
        self.is_plain = is_plain
        self.written = 0
        self.synced: list[int] = []
        self.errors: list[Exception | None] = []

    def begin_plain_sync(self) -> Sequence[File]:
        return []

    def begin_sync(self) -> Callable[[], None]:
        upto = self.written

        def work() -> None:
            if self.error:
                raise self.error
            self.synced.append(upto)

        return work

    def end_sync(self, error: Exception | None) -> None:
        self.errors.append(error)


async def turns(count: int = 5) -> None:
    """Run the loop until nothing is left to do."""
    for _ in range(count):
        await asyncio.sleep(0)


async def busy(background: HeldExecutor) -> GroupCommitter:
    """A committer without a free thread."""
    committer = GroupCommitter(background)
    for number in range(background.width):
        committer.request(Log(f"busy {number}"))
    await turns()
    return committer


@in_loop
async def test_a_lone_request_starts_at_once():
    background = HeldExecutor(width=2)
    log = Log("a")
    GroupCommitter(background).request(log)
    assert len(background.held) == 1
    await background.let_go()
    assert (log.synced, log.errors) == ([0], [None])


@in_loop
async def test_what_is_written_while_a_log_waits_is_part_of_its_commit():
    background = HeldExecutor(width=1)
    committer = await busy(background)
    log = Log("a")
    committer.request(log)
    log.written = 3
    await background.let_go()
    log.written = 4
    await background.let_go()
    assert log.synced == [3]


@in_loop
async def test_requests_during_a_commit_share_the_next():
    background = HeldExecutor(width=1)
    committer = GroupCommitter(background)
    first, *others = [Log(name) for name in "abcd"]
    committer.request(first)
    await turns()
    for log in others:
        committer.request(log)
        await turns()
    assert len(background.held) == 1, "the only thread is busy"
    await background.let_go()
    assert len(background.held) == 1, "all who waited share one piece of work"
    await background.let_go()
    assert [log.synced for log in others] == [[0]] * 3
    assert background.held == []


@in_loop
async def test_a_log_that_asks_twice_while_it_waits_is_committed_once():
    background = HeldExecutor(width=1)
    committer = await busy(background)
    log = Log("a")
    committer.request(log)
    committer.request(log)
    await background.let_go()
    await background.let_go()
    assert (log.synced, background.held) == ([0], [])


@in_loop
async def test_a_log_may_ask_again_as_soon_as_its_commit_ended():
    background = HeldExecutor(width=1)
    committer = GroupCommitter(background)

    class Busy(Log):
        def end_sync(self, error: Exception | None) -> None:
            super().end_sync(error)
            if len(self.errors) < 3:
                committer.request(self)

    log = Busy("a")
    committer.request(log)
    await turns()
    while background.held:
        await background.let_go()
    assert log.errors == [None] * 3


@pytest.mark.parametrize(
    ("width", "count", "shares"),
    [
        (4, 1, [1]),
        (4, 4, [1, 1, 1, 1]),
        (4, 10, [3, 2, 2, 1, 1, 1]),
        (1, 10, [10]),
        (3, 2, [1, 1]),
    ],
)
@in_loop
async def test_waiting_logs_are_divided_among_the_threads_that_are_free(width, count, shares):
    background = HeldExecutor(width)
    committer = await busy(background)
    logs = [Log(str(number)) for number in range(count)]
    for log in logs:
        committer.request(log)
    for _ in range(width):
        await background.let_go()
    found = []
    while background.held:
        before = sum(len(log.synced) for log in logs)
        await background.let_go()
        found.append(sum(len(log.synced) for log in logs) - before)
    assert found == shares
    assert all(log.errors == [None] for log in logs)


@in_loop
async def test_logs_that_wait_are_served_in_the_order_in_which_they_asked():
    background = HeldExecutor(width=2)
    committer = await busy(background)
    served: list[str] = []

    class Noted(Log):
        def begin_sync(self) -> Callable[[], None]:
            served.append(self.name)
            return super().begin_sync()

    for name in "abcde":
        committer.request(Noted(name))
    while background.held:
        await background.let_go()
    assert served == list("abcde")


@in_loop
async def test_never_more_than_the_width_runs_at_once():
    background = HeldExecutor(width=2)
    committer = GroupCommitter(background)
    logs = [Log(str(number)) for number in range(6)]
    for log in logs:
        committer.request(log)
        await turns()
        assert len(background.held) <= 2
    while background.held:
        await background.let_go(-1)
        assert len(background.held) <= 2
    assert all(log.synced == [0] for log in logs)


@in_loop
async def test_a_thread_that_is_free_does_not_wait_for_one_that_is_busy():
    background = HeldExecutor(width=2)
    committer = GroupCommitter(background)
    slow, quick = Log("slow"), Log("quick")
    committer.request(slow)
    await turns()
    for _ in range(3):
        committer.request(quick)
        await turns()
        await background.let_go(1)
    assert (slow.errors, quick.errors) == ([], [None] * 3)
    await background.let_go(0)
    assert slow.errors == [None]


@in_loop
async def test_one_failing_log_does_not_disturb_its_neighbours():
    background = HeldExecutor(width=1)
    committer = await busy(background)
    trouble = OSError(5, "the disk is dying")
    logs = [Log("a"), Log("b", trouble), Log("c")]
    for log in logs:
        committer.request(log)
    await background.let_go()
    await background.let_go()
    assert [log.errors for log in logs] == [[None], [trouble], [None]]
    committer.request(logs[0])
    await background.let_go()
    assert logs[0].errors == [None, None]


# With a kernel that syncs by itself.


@in_loop
async def test_a_commit_that_only_syncs_files_needs_no_thread():
    background, syncer = HeldExecutor(width=1), HeldSyncer(room=10)
    log = Log("a", is_plain=True)
    GroupCommitter(background, syncer).request(log)
    assert (len(syncer.held), background.held, log.errors) == (1, [], [])
    syncer.let_go()
    assert log.errors == [None]


@in_loop
async def test_a_commit_that_has_more_to_do_goes_to_a_thread():
    background, syncer = HeldExecutor(width=1), HeldSyncer(room=10)
    log = Log("a", is_plain=False)
    GroupCommitter(background, syncer).request(log)
    assert (syncer.held, len(background.held)) == ([], 1)
    await background.let_go()
    assert log.errors == [None]


@in_loop
async def test_what_the_kernel_has_no_room_for_goes_to_a_thread():
    background, syncer = HeldExecutor(width=1), HeldSyncer(room=3)
    committer = GroupCommitter(background, syncer)
    logs = [Log(name, is_plain=True) for name in "abc"]
    for log in logs:
        committer.request(log)
    assert (len(syncer.held), len(background.held)) == (2, 1), "a commit has two files at the most"
    assert committer.totals.sync_fallbacks == 1
    await background.let_go()
    syncer.let_go()
    syncer.let_go()
    assert [log.errors for log in logs] == [[None]] * 3


@in_loop
async def test_a_sync_that_the_kernel_fails_is_told_to_its_log_alone():
    syncer = HeldSyncer(room=10)
    committer = GroupCommitter(HeldExecutor(width=1), syncer)
    logs = [Log("a", is_plain=True), Log("b", is_plain=True)]
    for log in logs:
        committer.request(log)
    trouble = OSError(5, "the disk is dying")
    syncer.let_go(trouble)
    syncer.let_go()
    assert [log.errors for log in logs] == [[trouble], [None]]
