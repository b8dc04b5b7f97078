"""Connections to etcd that are cut, halved or silent, at every moment of a call and of a watch."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from millstream.errors import MillstreamError, OutcomeUnknown, Unavailable
from millstream.metadata.etcd import etcd_metadata
from millstream.metadata.etcd.etcd_metadata import EtcdMetadata
from millstream.metadata.etcd.messages import ResponseHeader, WatchResult
from millstream.metadata.interface import ABSENT, Compare, MetadataChange
from millstream.testing.etcd import RunningEtcd
from tests.in_loop import in_loop
from tests.metadata.etcd.cutting_proxy import MADE, CuttingProxy, Disturbance
from tests.metadata.suite import Heard, put

TRANSACTION, RANGE, WATCH = "/v3/kv/txn", "/v3/kv/range", "/v3/watch"
KEEPALIVE, REVOKE, GRANT = "/v3/lease/keepalive", "/v3/lease/revoke", "/v3/lease/grant"
TIMEOUT_MS = 1_500
PATIENT_MS = 30_000


@contextlib.asynccontextmanager
async def behind_two_proxies(
    etcd: RunningEtcd, cluster_id: str, *, timeout_ms: int = TIMEOUT_MS
) -> AsyncIterator[tuple[EtcdMetadata, CuttingProxy, CuttingProxy]]:
    """A client with two endpoints, both of them proxies of the same etcd."""
    (url,) = etcd.endpoints
    async with (
        CuttingProxy(url) as first,
        CuttingProxy(url) as second,
        await EtcdMetadata.open(
            [first.url, second.url], cluster_id, timeout_ms=timeout_ms
        ) as metadata,
    ):
        assert metadata._feed is not None
        while metadata._feed._lines == 0:  # noqa: ASYNC110 - a number, not an event.
            await asyncio.sleep(0)  # Until the watch is open.
        yield metadata, first, second


async def direct(etcd: RunningEtcd, cluster_id: str) -> EtcdMetadata:
    return await EtcdMetadata.open(etcd.endpoints, cluster_id, timeout_ms=PATIENT_MS)


async def noticed(metadata: EtcdMetadata) -> None:
    """Wait until the client knows that its connections are closed."""
    while metadata.counters.watch_restarts == 0:  # noqa: ASYNC110 - a number, not an event.
        await asyncio.sleep(0)


# Calls.


@pytest.mark.parametrize("disturbance", Disturbance)
def test_a_transaction_without_an_answer_is_unknown_and_never_sent_again(
    shared_etcd: RunningEtcd, cluster_id: str, disturbance: Disturbance
) -> None:
    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, second):
            first.disturb(TRANSACTION, disturbance)
            with pytest.raises(OutcomeUnknown, match="may have been made"):
                await metadata.transact(compares=[Compare("a", ABSENT)], puts={"a": b"1"})
            assert first.requests[TRANSACTION] + second.requests[TRANSACTION] == 1
            assert (await metadata.get("a") is not None) == (disturbance in MADE)
            assert await put(metadata, b=b"1")

    run()


@pytest.mark.parametrize("disturbance", Disturbance)
def test_a_read_without_an_answer_is_repeated_at_the_next_endpoint(
    shared_etcd: RunningEtcd, cluster_id: str, disturbance: Disturbance
) -> None:
    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, second):
            await put(metadata, a=b"1")
            first.disturb(RANGE, disturbance)
            assert await metadata.get("a") is not None
            assert second.requests[RANGE] == 1
            second.disturb(RANGE, disturbance)
            assert len(await metadata.list("")) == 1
            assert metadata.counters.reconnects >= 2

    run()


@pytest.mark.parametrize("disturbance", Disturbance)
def test_a_lease_is_granted_renewed_and_revoked_in_spite_of_a_lost_answer(
    shared_etcd: RunningEtcd, cluster_id: str, disturbance: Disturbance
) -> None:
    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, second):
            first.disturb(GRANT, disturbance)
            lease = await metadata.grant(60)
            await metadata.transact(puts={"a": b"1"}, lease=lease)
            second.disturb(KEEPALIVE, disturbance)
            await lease.renew()
            first.disturb(REVOKE, disturbance)
            await lease.revoke()
            assert await metadata.get("a") is None
            assert metadata.counters.failed_renewals == 0

    run()


def test_a_revocation_that_is_never_answered_is_unknown(
    shared_etcd: RunningEtcd, cluster_id: str
) -> None:
    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, second):
            lease = await metadata.grant(60)
            for proxy in (first, second):
                proxy.disturb(REVOKE, *[Disturbance.CUT_AFTER] * 1000)
                proxy.disturb(KEEPALIVE, *[Disturbance.CUT_BEFORE] * 1000)
            with pytest.raises(OutcomeUnknown):
                await lease.renew()
            with pytest.raises(OutcomeUnknown):
                await lease.revoke()
            assert metadata.counters.failed_renewals == 1

    run()


def test_an_endpoint_that_refuses_connections_is_skipped(
    shared_etcd: RunningEtcd, cluster_id: str
) -> None:
    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, second):
            await first.refuse()
            await noticed(metadata)
            metadata._gateway._current = 0
            revision = await put(metadata, a=b"1")
            assert second.requests[TRANSACTION] == 1
            assert await metadata.get("a") == ("a", b"1", revision, revision)

    run()


def test_if_no_endpoint_can_be_reached_nothing_is_changed(
    shared_etcd: RunningEtcd, cluster_id: str
) -> None:
    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, second):
            await put(metadata, a=b"1")
            lease = await metadata.grant(60)
            await first.refuse()
            await second.refuse()
            await noticed(metadata)
            for call in (
                metadata.transact(puts={"a": b"2"}),
                metadata.get("a"),
                metadata.list(""),
                metadata.grant(60),
                lease.renew(),
                lease.revoke(),
            ):
                with pytest.raises(Unavailable, match=r"etcd cannot be reached: .*127\.0\.0\.1"):
                    await call
            await first.accept()
            entry = await metadata.get("a")
            assert entry is not None
            assert entry.value == b"1"

    run()


def test_reads_of_a_node_that_starts_wait_for_etcd(
    shared_etcd: RunningEtcd, cluster_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_metadata, "WAIT_SECONDS", 0)

    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id, timeout_ms=200) as proxied:
            metadata, first, second = proxied
            await put(metadata, a=b"1")
            await first.refuse()
            await second.refuse()
            await noticed(metadata)
            reasons: list[str | None] = []
            metadata.on_wait = reasons.append
            read = asyncio.create_task(metadata.list(""))
            with pytest.raises(Unavailable):  # A change does not wait; it may be refused forever.
                await metadata.transact(puts={"a": b"2"})
            assert not read.done()
            await first.accept()
            assert [entry.value for entry in await read] == [b"1"]
            assert "etcd cannot be reached" in str(reasons[0])
            assert reasons[-1] is None

    run()


def test_opening_needs_one_endpoint(
    shared_etcd: RunningEtcd, cluster_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def run() -> None:
        (url,) = shared_etcd.endpoints
        async with CuttingProxy(url) as proxy:
            gone = proxy.url
        async with await EtcdMetadata.open([gone, url], cluster_id) as metadata:
            await put(metadata, a=b"1")
        with pytest.raises(Unavailable, match="etcd cannot be reached"):
            await EtcdMetadata.open([gone], cluster_id, timeout_ms=300)

    run()
    assert "cannot be reached" in caplog.text


def test_more_calls_than_connections_wait_for_each_other(
    shared_etcd: RunningEtcd, cluster_id: str
) -> None:
    @in_loop
    async def run() -> None:
        async with await direct(shared_etcd, cluster_id) as metadata:
            calls = [metadata.transact(puts={f"k{number}": b""}) for number in range(100)]
            assert len(set(await asyncio.gather(*calls))) == 100

    run()


# Watches.


def test_a_watch_that_is_cut_continues_without_a_gap(
    shared_etcd: RunningEtcd, cluster_id: str
) -> None:
    @in_loop
    async def run() -> None:
        writer = await direct(shared_etcd, cluster_id)
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, second):
            heard = Heard()
            metadata.watch("", heard)
            revisions = []
            for number in range(30):
                revisions.append(await put(writer, **{f"k{number % 4}": b"%d" % number}))
                if number % 10 == 5:
                    first.cut()
                    second.cut()
            changes = await heard.wait_for(30)
            assert [change.revision for change in changes] == revisions
            assert metadata.revision == revisions[-1]
            assert metadata.counters.watch_restarts >= 1
            assert metadata.counters.relists == 0
        await writer.close()

    run()


@pytest.mark.parametrize("disturbance", Disturbance)
def test_a_watch_that_is_disturbed_when_it_begins_is_opened_again(
    shared_etcd: RunningEtcd, cluster_id: str, disturbance: Disturbance
) -> None:
    @in_loop
    async def run() -> None:
        writer = await direct(shared_etcd, cluster_id)
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, second):
            heard = Heard()
            metadata.watch("", heard)
            for proxy in (first, second):
                proxy.disturb(WATCH, disturbance)
                proxy.cut()
            revisions = [await put(writer, a=b"%d" % number) for number in range(3)]
            # A node calls etcd at least once a second, and so learns of what did not arrive.
            reading = asyncio.ensure_future(_read_until(metadata, heard, 3))
            assert [change.revision for change in await heard.wait_for(3)] == revisions
            await reading
        await writer.close()

    run()


async def _read_until(metadata: EtcdMetadata, heard: Heard, count: int) -> None:
    while len(heard.changes) < count:
        with contextlib.suppress(MillstreamError):
            await metadata.list("")
        await asyncio.sleep(0.1)


def test_a_watch_that_is_silent_although_there_are_changes_is_opened_again(
    shared_etcd: RunningEtcd, cluster_id: str
) -> None:
    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, _):
            heard = Heard()
            metadata.watch("", heard)
            first.freeze(WATCH)
            revision = await put(metadata, a=b"1")
            assert metadata.watch_lag_seconds > 0
            assert await heard.wait_for(1) == [MetadataChange("a", b"1", revision)]
            assert metadata.watch_lag_seconds == 0

    run()


def test_a_message_without_events_proves_nothing(shared_etcd: RunningEtcd, cluster_id: str) -> None:
    """Some versions of etcd report progress before the changes up to it."""

    @in_loop
    async def run() -> None:
        async with await direct(shared_etcd, cluster_id) as metadata:
            feed = metadata._feed
            assert feed is not None
            before = feed.delivered
            feed._deliver(WatchResult(header=ResponseHeader(revision=before + 1_000)))
            assert feed.delivered == before

    run()


def test_a_watch_asks_for_a_leader_and_reads_are_never_serializable(
    shared_etcd: RunningEtcd, cluster_id: str
) -> None:
    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, _):
            await put(metadata, a=b"1")
            await metadata.get("a")
            await metadata.transact(compares=[Compare("a", 1)])
            for path in (WATCH, RANGE, TRANSACTION):
                assert b"\r\ngrpc-metadata-hasleader: true\r\n" in first.heads[path].lower()
                assert b"serializable" not in first.bodies[path]

    run()


def compact(etcd: RunningEtcd, revision: int) -> None:
    request = {"revision": str(revision), "physical": True}
    assert "header" in etcd.members[0].request("POST", "/v3/kv/compaction", request)


def test_after_a_compaction_the_differences_are_delivered(
    shared_etcd: RunningEtcd, cluster_id: str
) -> None:
    @in_loop
    async def run() -> None:
        writer = await direct(shared_etcd, cluster_id)
        await put(writer, same=b"0", changed=b"0", deleted=b"0", again=b"0")
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, second):
            heard = Heard()
            metadata.watch("", heard)
            await first.refuse()
            await second.refuse()
            await put(writer, changed=b"1")
            changed = await put(writer, changed=b"2")
            await writer.transact(deletes=["deleted", "again"])
            again = await put(writer, again=b"1")
            await put(writer, passing=b"1")
            await writer.transact(deletes=["passing"])
            last = await put(writer, new=b"1")
            compact(shared_etcd, last)
            await first.accept()
            await second.accept()
            assert await heard.wait_for(5) == [
                MetadataChange("changed", b"2", changed),
                MetadataChange("again", None, again - 1),
                MetadataChange("again", b"1", again),
                MetadataChange("new", b"1", last),
                MetadataChange("deleted", None, last),
            ]
            assert metadata.counters.relists == 1
            after = await put(writer, same=b"1")
            changes = await heard.wait_for(6)
            assert changes[5:] == [MetadataChange("same", b"1", after)]
        await writer.close()

    run()


def test_a_list_of_many_pages_has_one_revision(
    shared_etcd: RunningEtcd, cluster_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.metadata.etcd.etcd_metadata.PAGE_ENTRIES", 7)

    @in_loop
    async def run() -> None:
        async with await direct(shared_etcd, cluster_id) as metadata:
            keys = [f"k{number:02}" for number in range(50)]
            await metadata.transact(puts=dict.fromkeys(keys, b"0"))

            async def write() -> None:
                for number in range(1, 20):
                    await metadata.transact(puts=dict.fromkeys(keys, b"%d" % number))

            writing = asyncio.ensure_future(write())
            while not writing.done():
                listed = await metadata.list("k")
                assert [entry.key for entry in listed] == keys
                assert len({(entry.value, entry.revision) for entry in listed}) == 1
                assert listed.revision >= listed[0].revision
            await writing

    run()


def test_a_list_whose_revision_is_compacted_between_two_pages_begins_again(
    shared_etcd: RunningEtcd, cluster_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.metadata.etcd.etcd_metadata.PAGE_ENTRIES", 2)

    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, _):
            await put(metadata, a=b"1", b=b"1", c=b"1")
            before = first.requests[RANGE]
            listing = asyncio.ensure_future(metadata.list(""))
            await first.wait_for_request(RANGE, before + 1)
            writer = await direct(shared_etcd, cluster_id)
            compact(shared_etcd, await put(writer, d=b"1"))
            await writer.close()
            assert [entry.key for entry in await listing][:3] == ["a", "b", "c"]

    run()


def test_two_clusters_in_one_etcd_do_not_see_each_other(
    shared_etcd: RunningEtcd, cluster_id: str
) -> None:
    @in_loop
    async def run() -> None:
        async with (
            await direct(shared_etcd, cluster_id) as one,
            await direct(shared_etcd, cluster_id + "0") as other,
        ):
            heard = Heard()
            one.watch("", heard)
            await put(other, a=b"other")
            revision = await put(one, a=b"one")
            assert await heard.wait_for(1) == [MetadataChange("a", b"one", revision)]
            assert [entry.value for entry in await one.list("")] == [b"one"]
            assert [entry.value for entry in await other.list("")] == [b"other"]
            found = shared_etcd.members[0].request(
                "POST",
                RANGE,
                {"key": base64.b64encode(f"/millstream/{cluster_id}/a".encode()).decode()},
            )
            assert found["count"] == "1"

    run()


def test_closing_completes_changes_in_flight(shared_etcd: RunningEtcd, cluster_id: str) -> None:
    @in_loop
    async def run() -> None:
        metadata = await direct(shared_etcd, cluster_id)
        calls = [
            asyncio.ensure_future(metadata.transact(puts={f"k{number}": b""}))
            for number in range(10)
        ]
        await asyncio.sleep(0)
        for call in calls[:5]:
            call.cancel()
        await metadata.close()
        assert all(call.done() for call in calls[5:])
        async with await direct(shared_etcd, cluster_id) as metadata:
            assert len(await metadata.list("")) == 10

    run()


def test_calls_are_counted_by_kind_and_outcome(shared_etcd: RunningEtcd, cluster_id: str) -> None:
    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (metadata, first, _):
            await put(metadata, a=b"1")
            await metadata.get("a")
            first.disturb(TRANSACTION, Disturbance.CUT_AFTER)
            with pytest.raises(OutcomeUnknown):
                await put(metadata, a=b"2")
            seconds = metadata.counters.seconds
            counts = {key: sum(histogram.counts) for key, histogram in seconds.items()}
            assert counts == {
                ("transact", "done"): 1,
                ("get", "done"): 1,
                ("transact", "unknown"): 1,
            }

    run()


def test_the_log_says_why_a_watch_was_opened_again(
    shared_etcd: RunningEtcd, cluster_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    @in_loop
    async def run() -> None:
        async with behind_two_proxies(shared_etcd, cluster_id) as (_, first, second):
            first.cut()
            await second.wait_for_request(WATCH, 1)
            while "continues" not in caplog.text:  # noqa: ASYNC110 - a text, not an event.
                await asyncio.sleep(0)

    run()
    assert "the watch of etcd ended and is opened again: http://127.0.0.1:" in caplog.text
