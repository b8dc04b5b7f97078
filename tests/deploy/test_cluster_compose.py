"""The compose file of a cluster: one etcd, and three nodes that find each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.config.loader import load_configuration
from millstream.config.schema import NodeConfig
from millstream.testing.broker import running_broker
from tests.deploy.files import DEPLOY, VOLUME, documents, instructions

(COMPOSE,) = documents("compose-cluster.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
NODES = {name: service for name, service in SERVICES.items() if name != "etcd"}
ETCD = SERVICES["etcd"]


def started(name: str) -> NodeConfig:
    """Return what a node starts with, by the settings of its image and of its service."""
    service = SERVICES[name]
    assert service["command"] == ["--insecure"]
    return load_configuration(
        environment=service["environment"],
        config=str(DEPLOY / "millstream.toml"),
        pairs=["node.insecure=true"],
        host_name=service["hostname"],
    ).node


def test_there_are_three_nodes_and_one_etcd():
    assert list(NODES) == ["millstream-1", "millstream-2", "millstream-3"]
    assert "build" in NODES["millstream-1"], "one of them builds the image of all"
    assert {service["image"] for service in NODES.values()} == {"millstream:latest"}


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_can_do_more_than_it_has_to(name: str):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    for port in service.get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port), port


def test_a_node_has_the_id_that_its_host_name_ends_with():
    assert [started(name).broker.node_id for name in NODES] == [1, 2, 3]
    assert all(SERVICES[name]["hostname"] == name for name in NODES)


@pytest.mark.parametrize("name", NODES)
def test_a_node_listens_and_is_reached_at_the_same_addresses(name: str):
    node, service = started(name), SERVICES[name]
    assert service["ports"] == [
        f"127.0.0.1:{one.port}:{one.port}" for one in (node.kafka, node.http)
    ]
    assert str(node.advertised) == f"localhost:{node.kafka.port}"
    assert str(node.cluster.peer_advertised) == f"{name}:{node.cluster.peer.port}"
    assert {node.kafka.host, node.http.host, node.cluster.peer.host} == {"0.0.0.0"}
    assert node.cluster.peer.port not in (node.kafka.port, node.http.port)
    assert service["volumes"] == [f"data-{node.broker.node_id}:{VOLUME}"]
    assert int(service["stop_grace_period"].removesuffix("s")) * 1000 > node.drain_ms_max


def test_all_nodes_are_of_one_cluster_in_the_etcd_that_is_there():
    assert {(started(name).cluster.name, started(name).cluster.etcd) for name in NODES} == {
        ("development", ("http://etcd:2379",))
    }
    assert "--listen-client-urls=http://0.0.0.0:2379" in ETCD["command"]
    assert "--advertise-client-urls=http://etcd:2379" in ETCD["command"]
    (mounted,) = ETCD["volumes"]
    assert f"--data-dir={mounted.partition(':')[2]}/data" in ETCD["command"]
    assert dict(instructions("etcd.Containerfile"))["VOLUME"] == mounted.partition(":")[2]
    for service in NODES.values():
        assert service["depends_on"] == {"etcd": {"condition": "service_healthy"}}
        assert set(service["networks"]) & set(ETCD["networks"])


def test_what_is_named_is_there_and_nobody_shares_a_volume():
    volumes = [one.partition(":")[0] for service in SERVICES.values() for one in service["volumes"]]
    assert sorted(volumes) == sorted(COMPOSE["volumes"])
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == len(set(ports)) == 6
    for service in SERVICES.values():
        assert set(service["networks"]) <= set(COMPOSE["networks"])


def test_the_health_check_asks_the_node_at_its_own_port(tmp_path: Path):
    checks = [service["healthcheck"]["test"] for service in NODES.values()]
    assert checks[0] == checks[1] == checks[2]
    assert checks[0][:2] == ["CMD", "python"]
    with running_broker(tmp_path) as broker:
        port = broker.url.rpartition(":")[2]
        command = [sys.executable, *checks[0][2:]]
        for listen, status in ((f"0.0.0.0:{port}", 0), ("0.0.0.0:1", 1)):
            found = subprocess.run(
                command, env={"MILLSTREAM_HTTP_LISTEN": listen}, check=False, capture_output=True
            )
            assert found.returncode == status, found.stderr
