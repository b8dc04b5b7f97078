"""The etcd of the testing kit is real, and can be killed and started again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream.testing.etcd import EtcdFailed, RunningEtcd, running_etcd


def test_the_fixture_is_an_etcd_that_is_ready(millstream_etcd: RunningEtcd) -> None:
    (member,) = millstream_etcd.members
    assert member.is_healthy()
    assert millstream_etcd.endpoints == (member.client_url,)


def test_a_member_that_was_killed_keeps_its_data(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:
        (member,) = etcd.members
        member.request("POST", "/v3/kv/put", {"key": "YQ==", "value": "YQ=="})
        member.kill()
        assert not member.is_running
        member.start()
        etcd.wait_until_healthy()
        assert member.request("POST", "/v3/kv/range", {"key": "YQ=="})["count"] == "1"
    assert not member.is_running


def test_an_etcd_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(EtcdFailed, match=r"m0 has ended: .*no-such-option"),
        running_etcd(tmp_path, options=["--no-such-option"]),
    ):
        pass


def test_without_etcd_it_is_said_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EtcdFailed, match="make etcd"), running_etcd(tmp_path):
        pass
