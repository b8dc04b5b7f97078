"""Versions of etcd, users, TLS, and the limits of transactions."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream.config.schema import ClusterConfig
from millstream.errors import InvalidConfig, InvalidRequest, Unavailable
from millstream.metadata.etcd.etcd_metadata import (
    OPERATIONS_MAX,
    TRANSACTION_SIZE_MAX,
    EtcdMetadata,
)
from millstream.metadata.etcd.versions import check_version
from millstream.metadata.interface import ABSENT, Compare
from millstream.testing.etcd import EtcdTls, RunningEtcd, running_etcd
from tests.in_loop import in_loop
from tests.metadata.suite import Heard, put

PATIENT_MS = 30_000
PASSWORD = "open-sesame-7f3a"


# Versions.


@pytest.mark.parametrize("version", ["3.4.0", "3.4.23", "3.5.3", "3.5.17", "3.6.0", "4.0.1"])
def test_these_versions_are_used(version: str) -> None:
    check_version(version, "here")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("3.5.0", "here: etcd 3.5.0 can lose acknowledged changes"),
        ("3.5.2", "here: etcd 3.5.2 can lose acknowledged changes"),
        ("3.5.0-rc.1", "can lose acknowledged changes"),
        ("3.3.27", "here: etcd must have version 3.4 or later, got 3.3.27"),
        ("2.3.8", "must have version 3.4 or later"),
        ("new", "expected a version of etcd, got 'new'"),
    ],
)
def test_these_versions_are_refused(version: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        check_version(version, "here")


@contextlib.asynccontextmanager
async def answering(text: str) -> AsyncIterator[str]:
    """A server that answers everything with `text`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text))
            writer.write(text.encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@in_loop
async def test_a_version_that_loses_data_is_refused_before_it_is_used() -> None:
    async with answering('{"etcdserver": "3.5.1", "etcdcluster": "3.5.0"}') as url:
        with pytest.raises(InvalidConfig, match=f"{url}: etcd 3.5.1 can lose"):
            await EtcdMetadata.open([url], "c")


@in_loop
async def test_what_is_not_etcd_is_not_used() -> None:
    async with answering("hello") as url:
        with pytest.raises(Unavailable, match=r"etcd cannot be reached: .*hello"):
            await EtcdMetadata.open([url], "c")


def test_one_member_with_a_refused_version_is_enough(shared_etcd: RunningEtcd) -> None:
    @in_loop
    async def run() -> None:
        async with answering('{"etcdserver": "3.5.2"}') as url:
            with pytest.raises(InvalidConfig, match=r"3\.5\.2"):
                await EtcdMetadata.open([*shared_etcd.endpoints, url], "c")

    run()


@pytest.mark.parametrize(
    ("endpoints", "cluster_id", "message"),
    [
        ([], "c", "at least one endpoint"),
        (["127.0.0.1:2379"], "c", "endpoints of etcd must be URLs"),
        (["http://127.0.0.1:2379/v3"], "c", "endpoints of etcd must be URLs"),
        (["http://127.0.0.1:2379"], "a/b", "cluster id must be 1 to 100 letters"),
    ],
)
def test_what_cannot_be_an_etcd_is_refused(
    endpoints: list[str], cluster_id: str, message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        asyncio.run(EtcdMetadata.open(endpoints, cluster_id))


def test_a_node_opens_the_etcd_of_its_settings(
    shared_etcd: RunningEtcd, cluster_id: str, tmp_path: Path
) -> None:
    @in_loop
    async def run() -> None:
        config = ClusterConfig(
            etcd=shared_etcd.endpoints, name=cluster_id, etcd_timeout_ms=PATIENT_MS
        )
        for _ in range(2):
            async with await EtcdMetadata.open_configured(config, str(tmp_path)) as metadata:
                await put(metadata, a=b"1")
                assert metadata.cluster_id == cluster_id

    run()
    assert [file.name for file in tmp_path.iterdir()] == ["etcd-checkpoint"]


# Users.


def enable_users(etcd: RunningEtcd) -> None:
    """Make a user `root`, and a user `node` who may use the keys of cluster `c`."""

    def call(path: str, message: dict[str, Any]) -> None:
        response = etcd.members[0].request("POST", f"/v3/auth/{path}", message)
        assert "header" in response, response

    call("user/add", {"name": "root", "password": "root"})
    call("role/add", {"name": "root"})
    call("user/grant", {"user": "root", "role": "root"})
    call("user/add", {"name": "node", "password": PASSWORD})
    call("role/add", {"name": "node"})
    permission = {"permType": "READWRITE", "key": b64("/millstream/c/")}
    call("role/grant", {"name": "node", "perm": permission | {"range_end": b64("/millstream/c0")}})
    call("user/grant", {"user": "node", "role": "node"})
    call("enable", {})


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_user_of_etcd(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORD + "\n")

    async def opened(etcd: RunningEtcd, cluster_id: str = "c", user: str = "node") -> EtcdMetadata:
        return await EtcdMetadata.open(
            etcd.endpoints,
            cluster_id,
            timeout_ms=PATIENT_MS,
            user=user,
            password_file=str(password_file),
        )

    @in_loop
    async def run() -> None:
        with running_etcd(tmp_path) as etcd:
            enable_users(etcd)
            async with await opened(etcd) as metadata:
                heard = Heard()
                metadata.watch("", heard)
                await put(metadata, a=b"1")
                await heard.wait_for(1)
                # Tokens are lost with the memory of the member: a new one is asked for.
                etcd.members[0].kill()
                etcd.members[0].start()
                etcd.wait_until_healthy()
                while len(await metadata.list("")) != 1:
                    pass
                await put(metadata, a=b"2")
                await heard.wait_for(2)
                lease = await metadata.grant(60)
                await metadata.transact(puts={"b": b"1"}, lease=lease)
                await lease.renew()
                await lease.revoke()
                assert await metadata.get("b") is None
            with pytest.raises(Unavailable, match="permission denied"):
                await opened(etcd, cluster_id="other")
            password_file.write_text("wrong-" + PASSWORD)
            with pytest.raises(InvalidConfig, match="refuses user 'node'") as caught:
                await opened(etcd)
            assert PASSWORD not in str(caught.value)
            with pytest.raises(Unavailable, match="user name is empty"):
                await EtcdMetadata.open(etcd.endpoints, "c", timeout_ms=PATIENT_MS)
            password_file.unlink()
            with pytest.raises(InvalidConfig, match=f"cannot be read: {password_file}"):
                await opened(etcd)

    run()
    assert PASSWORD not in caplog.text
    assert "uthorization" not in caplog.text


# TLS.


def openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a certificate for 127.0.0.1, one for a client, and another authority."""
    place = tmp_path_factory.mktemp("certificates")
    for authority in ("ca", "other"):
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-days", "2", "-subj", f"/CN={authority}", "-keyout", f"{authority}.key",
            "-out", f"{authority}.pem", cwd=place,
        )  # fmt: skip
    for name in ("server", "client"):
        (place / f"{name}.ext").write_text(
            "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr", cwd=place,
        )  # fmt: skip
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem",
            cwd=place,
        )  # fmt: skip
    return place


def test_tls_with_certificates_on_both_sides(tmp_path: Path, certificates: Path) -> None:
    def file(name: str) -> str:
        return str(certificates / name)

    @in_loop
    async def run() -> None:
        tls = EtcdTls(file("ca.pem"), file("server.pem"), file("server.key"), True)
        with running_etcd(tmp_path, tls=tls) as etcd:
            async with await EtcdMetadata.open(
                etcd.endpoints,
                "c",
                timeout_ms=PATIENT_MS,
                ca_file=file("ca.pem"),
                cert_file=file("client.pem"),
                key_file=file("client.key"),
            ) as metadata:
                heard = Heard()
                metadata.watch("", heard)
                await put(metadata, a=b"1")
                await heard.wait_for(1)
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await EtcdMetadata.open(etcd.endpoints, "c", ca_file=file("other.pem"))
            with pytest.raises(Unavailable, match="etcd cannot be reached"):
                await EtcdMetadata.open(etcd.endpoints, "c", ca_file=file("ca.pem"))

    run()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ca_file": "/missing/ca.pem"}, "CA file of etcd cannot be used: /missing/ca.pem"),
        (
            {"cert_file": "/missing/c.pem", "key_file": "/missing/c.key"},
            "certificate for etcd cannot be used: /missing/c.pem, /missing/c.key",
        ),
    ],
)
def test_files_of_tls_that_cannot_be_used_are_named(files: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        asyncio.run(EtcdMetadata.open(["https://127.0.0.1:1"], "c", **files))  # type: ignore[arg-type]


# Limits.


def test_a_transaction_has_the_limits_of_etcd(shared_etcd: RunningEtcd, cluster_id: str) -> None:
    @in_loop
    async def run() -> None:
        async with await EtcdMetadata.open(
            shared_etcd.endpoints, cluster_id, timeout_ms=PATIENT_MS
        ) as metadata:
            keys = [f"k{number:03}" for number in range(OPERATIONS_MAX + 1)]
            compares = [Compare(key, ABSENT) for key in keys]
            with pytest.raises(InvalidRequest, match="at most 128 changes, got 129"):
                await metadata.transact(puts=dict.fromkeys(keys, b""))
            with pytest.raises(InvalidRequest, match="at most 128 changes, got 129"):
                await metadata.transact(puts={keys[0]: b""}, deletes=keys[1:])
            with pytest.raises(InvalidRequest, match="at most 128 conditions, got 129"):
                await metadata.transact(compares=compares)
            half = b"x" * (TRANSACTION_SIZE_MAX // 2)
            with pytest.raises(InvalidRequest, match="at most 1400000 bytes, got 1400002"):
                await metadata.transact(puts={"a": half, "b": half})
            assert len(await metadata.list("")) == 0
            assert await metadata.transact(
                compares=compares[:-1], puts=dict.fromkeys(keys[:-1], b"")
            )
            assert await metadata.transact(puts={"a": half, "b": half[:-2]})

    run()
