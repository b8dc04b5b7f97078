"""The metadata in etcd passes the suites, with one member and with three."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from millstream.metadata.etcd.etcd_metadata import EtcdMetadata
from millstream.testing.etcd import RunningEtcd
from tests.metadata.suite import LeasedMetadataSuite

TIMEOUT_MS = 30_000
"""No test here is about deadlines, and a machine that runs tests may be slow."""


class EtcdSuite(LeasedMetadataSuite):
    @pytest.fixture
    def etcd(self) -> Iterator[RunningEtcd]:
        raise NotImplementedError

    @pytest.fixture
    def connect(self, etcd: RunningEtcd, cluster_id: str) -> Callable[[], Awaitable[EtcdMetadata]]:
        count = 0

        async def connect() -> EtcdMetadata:
            nonlocal count
            first = count % len(etcd.endpoints)
            count += 1
            endpoints = (*etcd.endpoints[first:], *etcd.endpoints[:first])
            return await EtcdMetadata.open(endpoints, cluster_id, timeout_ms=TIMEOUT_MS)

        return connect

    @pytest.fixture
    def open_metadata(
        self, connect: Callable[[], Awaitable[EtcdMetadata]]
    ) -> Callable[[], Awaitable[EtcdMetadata]]:
        return connect

    @pytest.fixture
    def pass_time(self) -> Callable[[float], Awaitable[None]]:
        return asyncio.sleep  # The leases of a real etcd expire by a real clock.


class TestOneMember(EtcdSuite):
    @pytest.fixture
    def etcd(self, shared_etcd: RunningEtcd) -> RunningEtcd:
        return shared_etcd


class TestThreeMembers(EtcdSuite):
    @pytest.fixture
    def etcd(self, shared_trio: RunningEtcd) -> RunningEtcd:
        return shared_trio
