"""The metadata in etcd against a dictionary as model."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings

from millstream.metadata.etcd.etcd_metadata import EtcdMetadata
from millstream.testing.etcd import RunningEtcd
from tests.metadata.model import LeasedMachine

EXAMPLES = 1_000 if os.environ.get("MILLSTREAM_LONG") else 30


class EtcdMachine(LeasedMachine):
    endpoints: Sequence[str] = ()

    def __init__(self) -> None:
        self.cluster_id = uuid.uuid4().hex
        super().__init__()

    async def open_store(self) -> EtcdMetadata:
        return await EtcdMetadata.open(self.endpoints, self.cluster_id, timeout_ms=30_000)


@pytest.fixture(autouse=True)
def endpoints(shared_trio: RunningEtcd) -> None:
    EtcdMachine.endpoints = shared_trio.endpoints


TestEtcdMachine = EtcdMachine.TestCase
TestEtcdMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
