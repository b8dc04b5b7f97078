"""Members of etcd that are killed or hang, lost quorums, and backups that were restored."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from millstream.errors import (
    CorruptData,
    OutcomeUnknown,
    StorageFailed,
    Unavailable,
)
from millstream.metadata.etcd.etcd_metadata import EtcdMetadata
from millstream.testing.etcd import RunningEtcd, running_etcd
from tests.in_loop import in_loop
from tests.metadata.suite import Heard, put

PATIENT_MS = 30_000


async def put_somehow(metadata: EtcdMetadata, key: str, value: bytes) -> bool:
    """Put a key as a careful caller does: after an unknown outcome, read before repeating."""
    while True:
        try:
            await metadata.transact(puts={key: value})
        except Unavailable:
            await asyncio.sleep(0.05)
        except OutcomeUnknown:
            while True:
                try:
                    entry = await metadata.get(key)
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)
            if entry is not None and entry.value == value:
                return False
        else:
            return True


def test_a_cluster_survives_the_loss_of_any_member(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        with running_etcd(tmp_path, members=3) as etcd:
            async with await EtcdMetadata.open(etcd.endpoints, "c", timeout_ms=5_000) as metadata:
                heard = Heard()
                metadata.watch("", heard)
                for number, member in enumerate(etcd.members):
                    await put_somehow(metadata, f"before{number}", b"1")
                    member.kill()
                    await put_somehow(metadata, f"after{number}", b"1")
                    statuses = await metadata.members()
                    assert [status.is_healthy for status in statuses].count(False) == 1
                    assert not statuses[number].is_healthy
                    assert "cannot connect" in statuses[number].problem
                    member.start()
                    await asyncio.to_thread(etcd.wait_until_healthy)
                changes = await heard.wait_for(6)
                assert [change.key for change in changes] == [
                    f"{when}{number}" for number in range(3) for when in ("before", "after")
                ]
                assert len(await metadata.list("")) == 6
                statuses = await metadata.members()
                assert all(status.is_healthy and status.version for status in statuses)

    run()


def test_without_a_quorum_nothing_is_changed_or_read(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        with running_etcd(tmp_path, members=3) as etcd:
            last = etcd.members[-1]
            async with await EtcdMetadata.open(
                [last.client_url], "c", timeout_ms=1_000
            ) as metadata:
                heard = Heard()
                metadata.watch("", heard)
                while await put_somehow(metadata, "a", b"1") is False:
                    pass
                await heard.wait_for(1)
                for member in etcd.members[:2]:
                    member.kill()
                with pytest.raises(Unavailable):
                    await metadata.get("a")
                is_refused = False
                while not is_refused:
                    try:
                        await metadata.transact(puts={"a": b"2"})
                    except OutcomeUnknown:
                        continue  # The member has not noticed yet.
                    except Unavailable as error:
                        is_refused = "no leader" in str(error)
                    else:
                        pytest.fail("a change without a quorum")
                # The watch of a member without a leader ends, instead of being silent forever.
                assert metadata.counters.watch_restarts > 0
                for member in etcd.members[:2]:
                    member.start()
                await asyncio.to_thread(etcd.wait_until_healthy)
                await put_somehow(metadata, "a", b"3")
                while heard.changes[-1].value != b"3":
                    await heard.wait_for(len(heard.changes) + 1)

    run()


def test_a_member_that_hangs_is_left_by_calls_and_watches(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        with running_etcd(tmp_path, members=3) as etcd:
            async with (
                await EtcdMetadata.open(etcd.endpoints, "c", timeout_ms=3_000) as metadata,
                await EtcdMetadata.open(etcd.endpoints[1:], "c", timeout_ms=PATIENT_MS) as writer,
            ):
                heard = Heard()
                metadata.watch("", heard)
                await put_somehow(writer, "a", b"1")
                await heard.wait_for(1)
                etcd.members[0].pause()
                await put_somehow(writer, "a", b"2")
                # No call of this client: its watch finds out by itself.
                await heard.wait_for(2)
                entry = await metadata.get("a")
                assert entry is not None
                assert entry.value == b"2"
                etcd.members[0].resume()

    run()


# Backups.


def restore(etcd: RunningEtcd, backup: Path) -> None:
    (member,) = etcd.members
    member.kill()
    shutil.rmtree(member.data)
    shutil.copytree(backup, member.data)
    member.start()
    etcd.wait_until_healthy()


def back_up(etcd: RunningEtcd, backup: Path) -> None:
    (member,) = etcd.members
    member.kill()
    shutil.copytree(member.data, backup)
    member.start()
    etcd.wait_until_healthy()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_node_does_not_start_with_a_restored_backup(tmp_path: Path, is_closed: bool) -> None:
    checkpoint, backup = tmp_path / "etcd-checkpoint", tmp_path / "backup"

    async def opened(etcd: RunningEtcd, *, is_loss_accepted: bool = False) -> EtcdMetadata:
        return await EtcdMetadata.open(
            etcd.endpoints,
            "c",
            timeout_ms=PATIENT_MS,
            checkpoint_path=str(checkpoint),
            is_loss_accepted=is_loss_accepted,
        )

    @in_loop
    async def run() -> None:
        with running_etcd(tmp_path) as etcd:
            metadata = await opened(etcd)
            await put(metadata, a=b"1")
            await metadata.close()
            back_up(etcd, backup)
            metadata = await opened(etcd)
            revision = await put(metadata, a=b"2")
            if is_closed:
                await metadata.close()
            else:
                recording = metadata._seen._recording
                await (recording or asyncio.sleep(0))
            restore(etcd, backup)
            with pytest.raises(CorruptData, match=f"records revision {revision}: a backup of etcd"):
                await opened(etcd)
            with pytest.raises(CorruptData):
                await opened(etcd)
            async with await opened(etcd, is_loss_accepted=True) as again:
                entry = await again.get("a")
                assert entry is not None
                assert entry.value == b"1"
            async with await opened(etcd):
                pass
            if not is_closed:
                await metadata.close()

    run()


def test_a_backup_that_is_restored_under_a_running_node_stops_it(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        with running_etcd(tmp_path) as etcd:
            async with await EtcdMetadata.open(
                etcd.endpoints, "c", timeout_ms=PATIENT_MS
            ) as metadata:
                await put(metadata, a=b"1")
                back_up(etcd, tmp_path / "backup")
                await put_somehow(metadata, "a", b"2")
                await put_somehow(metadata, "a", b"3")
                restore(etcd, tmp_path / "backup")
                with pytest.raises(StorageFailed, match="a backup of etcd was restored"):
                    await metadata.get("a")
                assert metadata.failure is not None
                for call in (metadata.get("a"), metadata.list(""), metadata.transact(puts={})):
                    with pytest.raises(StorageFailed, match="cannot be used"):
                        await call

    run()
