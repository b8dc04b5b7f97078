"""A node on a full disk: topics are deleted and retention is lowered, and writes resume."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.config.schema import LogConfig, StoreConfig
from millstream.testing.broker import RunningBroker, running_broker

SIZE = 16 * 1024 * 1024

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, if this user may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(path)]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
            yield path
            subprocess.run(["umount", "--lazy", str(path)], check=True)
            return
    pytest.skip("a file system can only be mounted by root")


class HttpNode:
    """Requests to a node, with their status."""

    def __init__(self, broker: RunningBroker) -> None:
        self._url = broker.url

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data=data, method=method)
        request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def append(self, topic: str) -> int:
        record = {"records": [{"value": "x" * 50_000}]}
        return self("POST", f"/v1/topics/{topic}/records", record)[0]

    def fill(self, *topics: str) -> None:
        """Append until the disk is full for all topics."""
        for topic in topics:
            while (status := self.append(topic)) < 300:
                pass
            assert status == 507, status

    def append_until_accepted(self, topic: str) -> None:
        """Append until there is space; a node that never resumes runs into the test's timeout."""
        while self.append(topic) >= 300:
            pass


@contextlib.contextmanager
def node(data: Path) -> Iterator[HttpNode]:
    log = LogConfig(segment_bytes_max=1024 * 1024)
    with running_broker(data, log=log, store=StoreConfig(upkeep_interval_ms=1000)) as broker:
        yield HttpNode(broker)


def fill_rest(disk: Path) -> None:
    """Take what is left of the disk, as another program would.

    Maintenance of the node takes some space for a moment and returns it, so one pass is not enough.
    """
    with (disk / "rest").open("ab", buffering=0) as file:
        while os.statvfs(disk).f_bavail:
            with contextlib.suppress(OSError):
                file.write(bytes(4096))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_topic_is_deleted_on_a_full_disk_and_writes_resume(small_disk, is_restarted):
    with contextlib.ExitStack() as stack:
        ask = stack.enter_context(node(small_disk / "data"))
        for topic in ("kept", "given"):
            assert ask("PUT", f"/v1/topics/{topic}", {"partitions": 1})[0] < 300
        assert ask.append("kept") < 300
        ask.fill("given")
        if is_restarted:
            stack.close()
            fill_rest(small_disk)
            ask = stack.enter_context(node(small_disk / "data"))
        else:
            fill_rest(small_disk)
        number = 0
        while ask("PUT", f"/v1/topics/new-{number}", {"partitions": 1})[0] < 300:
            number += 1  # Until the space for new topics is used up.
        assert ask("PUT", f"/v1/topics/new-{number}", {"partitions": 1})[0] == 507
        status, said = ask("DELETE", "/v1/topics/given")
        assert status < 300, said
        ask.append_until_accepted("kept")
        assert ask("PUT", f"/v1/topics/new-{number}", {"partitions": 1})[0] < 300
        assert ask("GET", "/health/ready")[0] == 200


def test_retention_is_lowered_on_a_full_disk_and_writes_resume(small_disk):
    with node(small_disk / "data") as ask:
        assert ask("PUT", "/v1/topics/orders", {"partitions": 1})[0] < 300
        ask.fill("orders")
        fill_rest(small_disk)
        for limit in range(3):  # Not only the first change has space.
            body = {"retention_bytes": 2 * 1024 * 1024 + limit}
            status, said = ask("PUT", "/v1/topics/orders", body)
            assert status < 300, said
        ask.append_until_accepted("orders")
