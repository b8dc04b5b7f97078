"""One etcd for all tests of a process that do not harm it: each test has keys of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from millstream.testing.etcd import RunningEtcd, running_etcd


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEtcd]:
    with running_etcd(tmp_path_factory.mktemp("shared-etcd")) as etcd:
        yield etcd


@pytest.fixture(scope="session")
def shared_trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEtcd]:
    with running_etcd(tmp_path_factory.mktemp("shared-trio"), members=3) as etcd:
        yield etcd


@pytest.fixture
def cluster_id() -> str:
    return uuid.uuid4().hex
