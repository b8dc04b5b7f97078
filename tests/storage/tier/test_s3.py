"""A cold store in S3, served by moto."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from millstream.config.schema import StoreConfig, TierConfig
from millstream.errors import InvalidConfig, TierUnavailable
from millstream.storage.segment.cold_segment import ColdMiss
from millstream.storage.store import Store
from millstream.storage.tier.arrow_store import ArrowStore
from millstream.storage.tier.cold_store import open_cold_store
from tests.in_loop import in_loop

from .stores import TIERED, cold, fill


@pytest.fixture(name="uri")
def s3_uri(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = f"scheme=http&endpoint_override={host}%3A{port}&region=us-east-1"
    options += "&allow_bucket_creation=true"
    try:
        from pyarrow import fs  # noqa: PLC0415

        filesystem, path = fs.FileSystem.from_uri(f"s3://logs?{options}")
        filesystem.create_dir(path)
        yield f"s3://logs/node?{options}"
    finally:
        server.stop()


def test_objects_are_written_read_listed_and_deleted(uri: str) -> None:
    store = open_cold_store(uri)
    assert isinstance(store, ArrowStore)
    assert store.uri == "s3://logs/node", "options and credentials are not shown"
    assert list(store.list("a/")) == []
    store.put("a/b/one.log", [b"x" * 10, b"y" * 10])
    store.put("a/two.log", [b"z"])
    assert store.size("a/b/one.log") == 20
    assert store.read("a/b/one.log", 8, 4) == b"xxyy"
    assert store.read("a/b/one.log", 18, 100) == b"yy"
    assert sorted(store.list("a/")) == ["a/b/one.log", "a/two.log"]
    store.delete("a/two.log")
    store.delete("a/two.log")
    assert list(store.list("a/")) == ["a/b/one.log"]
    with pytest.raises(FileNotFoundError):
        store.size("a/two.log")
    with pytest.raises(OSError):  # noqa: PT011 - what a library raises.
        store.read("a/two.log", 0, 1)


@in_loop
async def test_segments_move_there_and_are_read_after_a_restart(uri: str, tmp_path) -> None:
    def open_store() -> Store:
        return Store(
            str(tmp_path),
            log_config=TIERED,
            config=StoreConfig(upkeep_interval_ms=0),
            tier=TierConfig(store=uri, read_wait_ms=60_000),
            cold_store=open_cold_store(uri),
        )

    async with open_store() as store:
        log = await store.log("t")
        await fill(log, 12)
        await store.relocator.run_once()
        assert cold(log)
    async with open_store() as store:
        log = await store.log("t")
        for segment in cold(log):
            with pytest.raises(ColdMiss):
                log.read(segment.base_offset)
            ranges = store.prefetcher.cold_ranges(log.segments, segment.base_offset, 1000)
            await store.prefetcher.prefetch(ranges)
            assert log.read(segment.base_offset).data
        marker = cold(log)[0].marker
        await log.evict_before(cold(log)[0].next_offset)
        while not store.relocator.counters.deletions:
            await store.relocator.run_once()
        with pytest.raises(FileNotFoundError):
            open_cold_store(uri).size(marker.key)


@in_loop
async def test_a_bucket_that_is_gone_keeps_segments_here(uri: str, tmp_path) -> None:
    missing = uri.replace("logs/node", "nothing/node").replace("&allow_bucket_creation=true", "")
    store = Store(
        str(tmp_path),
        log_config=TIERED,
        config=StoreConfig(upkeep_interval_ms=0),
        tier=TierConfig(store=missing),
        cold_store=open_cold_store(missing),
    )
    async with store:
        log = await store.log("t")
        await fill(log, 12)
        await store.relocator.run_once()
        assert not cold(log)
        assert "cannot be" in store.tier_problems()[0]
        assert log.read(0).data


def test_a_uri_that_cannot_be_opened_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="cannot be opened"):
        open_cold_store("s3://bucket?nonsense=1")
    assert issubclass(ColdMiss, TierUnavailable)
