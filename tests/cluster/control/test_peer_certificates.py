"""Mutual TLS between nodes: which certificates are refused, and how they are replaced."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from millstream.cluster.control.peer_certificates import PeerCertificates, names_host
from millstream.config.certificates import CertificateFiles
from millstream.config.schema import ClusterConfig, Endpoint, NodeConfig
from millstream.errors import InvalidConfig, OutcomeUnknown, PeerUnavailable
from millstream.node import Node
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.servers import tls
from millstream.testing.memory_metadata import MetadataServer
from tests.cluster.local_cluster import local_cluster, submit, until, values_of
from tests.in_loop import in_loop
from tests.servers.peer.certificates import Authority
from tests.servers.peer.peer_nodes import running_peer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "other")


def settings(authority: Authority, certificate: str) -> dict[str, str]:
    return {
        "peer_ca_file": authority.certificate,
        "peer_cert_file": certificate,
        "peer_key_file": certificate,
    }


def certificates(authority: Authority, certificate: str) -> PeerCertificates:
    found = PeerCertificates.configured(ClusterConfig(**settings(authority, certificate)))
    assert found is not None
    return found


def test_without_settings_there_is_no_tls() -> None:
    assert PeerCertificates.configured(ClusterConfig()) is None


@pytest.mark.parametrize(
    ("names", "host", "is_named"),
    [
        (("node-1",), "node-1", True),
        (("Node-1.Example",), "node-1.example.", True),
        (("node-1",), "node-10", False),
        (("node-1",), "node-1.example", False),
        (("*.example",), "node-1.example", True),
        (("*.example",), "a.node-1.example", False),
        (("*.example",), "example", False),
        (("10.0.0.1",), "10.0.0.1", True),
        (("10.0.0.1",), "10.0.0.10", False),
        (("0:0:0:0:0:0:0:1",), "::1", True),
        (("*.0.0.1",), "10.0.0.1", False),
        ((), "node-1", False),
    ],
)
def test_a_certificate_names_the_host_of_its_node(
    names: tuple[str, ...], host: str, is_named: bool
) -> None:
    assert names_host(names, host) is is_named


# Certificates that do not connect, in either direction.


async def refused_client(authority: Authority, context: object) -> None:
    server_side = certificates(authority, authority.issue("node-1"))
    async with running_peer(ssl_context=server_side.server_context) as server:
        with pytest.raises((PeerUnavailable, OutcomeUnknown)):
            await server.connect(ssl_context=context)
        assert server.counters.handshakes == 0


@in_loop
async def test_a_peer_whose_certificate_is_expired_or_for_servers_only_is_refused(
    authority: Authority,
):
    for certificate in (
        authority.issue("late", days=-1),
        authority.issue("servers", usage="serverAuth"),
        authority.issue("mail", usage="emailProtection"),
    ):
        await refused_client(authority, certificates(authority, certificate).client_context)


@in_loop
async def test_a_peer_of_another_authority_or_with_its_own_signature_is_refused(
    authority: Authority, stranger: Authority, tmp_path: Path
):
    other = certificates(authority, stranger.issue("node-2")).client_context
    await refused_client(authority, other)
    alone = Authority(tmp_path, "node-2")  # Its certificate is signed by itself.
    both = tmp_path / "both.pem"
    both.write_text((tmp_path / "node-2.key").read_text() + (tmp_path / "node-2.pem").read_text())
    both.chmod(0o600)
    assert alone.certificate
    await refused_client(authority, certificates(authority, str(both)).client_context)


@pytest.mark.parametrize(
    "issued",
    [
        {"hosts": "DNS:elsewhere"},
        {"days": -1},
        {"usage": "clientAuth"},
    ],
    ids=["wrong-name", "expired", "for-clients-only"],
)
def test_a_node_that_shows_a_bad_certificate_is_not_connected_to(
    authority: Authority, issued: dict[str, object]
) -> None:
    @in_loop
    async def run() -> None:
        bad = authority.issue("node-1", **issued)  # type: ignore[arg-type]
        mine = certificates(authority, authority.issue("node-2")).client_context
        async with running_peer(ssl_context=certificates(authority, bad).server_context) as server:
            with pytest.raises(PeerUnavailable, match="certificate verify failed"):
                await server.connect(ssl_context=mine)

    run()


# Files.


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    good = authority.issue("node-1")
    with pytest.raises(InvalidConfig, match=r"missing\.pem"):
        certificates(authority, str(tmp_path / "missing.pem"))
    other_key = authority.issue("node-2")
    with pytest.raises(InvalidConfig, match="cannot be used"):
        PeerCertificates(CertificateFiles(good, other_key, authority.certificate))
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("hello")
    garbage.chmod(0o600)
    with pytest.raises(InvalidConfig, match=r"garbage\.pem"):
        certificates(authority, str(garbage))


def test_a_key_that_others_can_read_is_refused(authority: Authority, tmp_path: Path) -> None:
    key = Path(shutil.copy(authority.issue("node-1"), tmp_path))
    key.chmod(0o644)
    with pytest.raises(InvalidConfig, match="can be read by others"):
        certificates(authority, str(key))


def test_changed_files_are_read_again_and_bad_ones_are_not_used(
    authority: Authority, tmp_path: Path
) -> None:
    path = Path(shutil.copy(authority.issue("node-1"), tmp_path / "node.pem"))
    path.chmod(0o600)
    loaded = certificates(authority, str(path))
    before = loaded.server_context
    assert not loaded.reload_if_changed()
    path.write_text("torn")
    assert not loaded.reload_if_changed()
    assert loaded.server_context is before
    os.replace(authority.issue("node-1"), path)
    assert loaded.reload_if_changed()
    assert loaded.server_context is not before
    path.unlink()
    assert not loaded.reload_if_changed()


# Nodes.


@in_loop
async def test_nodes_with_certificates_replicate_and_take_new_ones_while_they_run(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tls, "CHECK_SECONDS", 0.02)
    paths = {n: tmp_path / f"node-{n}.pem" for n in (1, 2)}
    for number, path in paths.items():
        shutil.copy(authority.issue(f"node-{number}"), path)
        path.chmod(0o600)
    async with local_cluster(tmp_path, count=0) as cluster:
        for number, path in paths.items():
            await cluster.start_node(number, **settings(authority, str(path)))
        await until(lambda: all(len(cluster.member(n).state.nodes) == 2 for n in (1, 2)))
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a")

        former = {n: cluster.nodes[n]._cluster.peers.ssl_context for n in (1, 2)}  # type: ignore[union-attr]
        connections = [c for n in (1, 2) for c in cluster.nodes[n]._cluster.listener.connections]  # type: ignore[union-attr]
        for number, path in paths.items():
            os.replace(authority.issue(f"node-{number}"), path)
        await until(
            lambda: all(
                cluster.nodes[n]._cluster.peers.ssl_context is not former[n]  # type: ignore[union-attr]
                for n in (1, 2)
            )
        )
        await submit(cluster.partition(leader, "t"), "b")
        assert connections
        assert not any(connection._is_closing for connection in connections)
        await until(lambda: all(values_of(cluster.partition(n, "t")) == ["a", "b"] for n in (1, 2)))


@in_loop
async def test_a_node_with_the_certificate_of_another_host_harms_nobody(
    authority: Authority, tmp_path: Path
):
    good = {n: settings(authority, authority.issue(f"node-{n}")) for n in (1, 2)}
    bad = settings(authority, authority.issue("node-3", hosts="DNS:elsewhere"))
    async with local_cluster(tmp_path, count=0) as cluster:
        for number, files in good.items():
            await cluster.start_node(number, **files)
        await until(lambda: all(len(cluster.member(n).state.nodes) == 2 for n in (1, 2)))
        await cluster.create("t")
        await cluster.start_node(3, **bad)
        listeners = [cluster.nodes[n]._cluster.listener for n in (1, 2)]  # type: ignore[union-attr]
        await until(
            lambda: any(
                listener.counters.refused_handshakes[PeerErrorCode.UNTRUSTED]
                for listener in listeners
            )
        )
        assert not any(
            connection.peer is not None and connection.peer.identity.node_id == 3
            for listener in listeners
            for connection in listener.connections
        )
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a")


@in_loop
async def test_other_machines_are_let_in_with_certificates_or_by_the_operators_word(
    authority: Authority, tmp_path: Path
):
    everywhere = Endpoint("0.0.0.0", 0)
    advertised = Endpoint("127.0.0.1", 1)
    files = settings(authority, authority.issue("node-1"))

    async def start(name: str, *, is_insecure: bool = False, **cluster: object) -> None:
        config = NodeConfig(
            data=str(tmp_path / name),
            kafka=Endpoint("127.0.0.1", 0),
            http=Endpoint("127.0.0.1", 0),
            is_insecure=is_insecure,
            cluster=ClusterConfig(name="test", peer=everywhere, **cluster),  # type: ignore[arg-type]
        )
        node = Node(config, metadata=MetadataServer().connect())
        await node.start()
        await node.stop()

    with pytest.raises(InvalidConfig, match="needs mutual TLS"):
        await start("plain", peer_advertised=advertised)
    with pytest.raises(InvalidConfig, match="set the address that they use with --advertise-peer"):
        await start("nowhere", is_insecure=True)
    await start("insecure", is_insecure=True, peer_advertised=advertised)
    await start("secure", peer_advertised=advertised, **files)


def test_the_commands_of_the_manual_make_certificates_that_nodes_take(tmp_path: Path) -> None:
    manual = Path(__file__).parents[3] / "docs" / "operating" / "cluster.md"
    block = re.search(r"```sh\n(openssl .*?)```", manual.read_text(), re.DOTALL)
    assert block is not None
    subprocess.run(["sh", "-e", "-c", block[1]], cwd=tmp_path, check=True, capture_output=True)

    @in_loop
    async def run() -> None:
        made = PeerCertificates(
            CertificateFiles(
                *(str(tmp_path / name) for name in ("peer.pem", "peer.key", "peer-ca.pem"))
            )
        )
        async with running_peer(ssl_context=made.server_context) as server:
            connection = await server.connect(ssl_context=made.client_context)
            assert names_host(server.seen[0].certificate_names, "node-1.example")
            connection.close()

    run()
