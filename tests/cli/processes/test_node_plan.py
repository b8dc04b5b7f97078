"""Settings of each process: ids, directories, ports and processors."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.processes.node_plan import NodePlan, plan_nodes
from millstream.config.loader import Configuration, load_configuration
from millstream.config.schema import EventFormat
from millstream.errors import InvalidConfig

ETCD = "http://127.0.0.1:12379"


def configured(*pairs: str, **environment: str) -> Configuration:
    return load_configuration(
        environment=environment, pairs=("node.processes=3", *pairs), host_name="machine"
    )


def planned(*pairs: str, etcd: str | None = ETCD) -> list[NodePlan]:
    return plan_nodes(configured(*pairs), etcd=etcd, format_=EventFormat.JSON, host_name="machine")


def loaded(plan: NodePlan, tmp_path: Path) -> Configuration:
    """Return the configuration of the process: its file, without the environment of this one."""
    path = tmp_path / "node.toml"
    path.write_text(plan.toml())
    return load_configuration(environment={}, config=str(path))


def ports(plans: list[NodePlan], path: str) -> list[int]:
    return [plan.settings[path].port for plan in plans]


def test_ids_directories_and_ports_are_counted_up(tmp_path: Path):
    plans = planned("node.data=/data", "kafka.listen=127.0.0.1:9000", "http.listen=127.0.0.1:8000")
    assert [plan.node_id for plan in plans] == [1, 2, 3]
    configs = [loaded(plan, tmp_path).node for plan in plans]
    assert [config.data for config in configs] == ["/data/node-1", "/data/node-2", "/data/node-3"]
    assert [config.broker.node_id for config in configs] == [1, 2, 3]
    assert [str(config.kafka) for config in configs] == [
        f"127.0.0.1:{port}" for port in (9000, 9001, 9002)
    ]
    assert [config.http.port for config in configs] == [8000, 8001, 8002]
    assert [str(config.cluster.peer) for config in configs] == ["127.0.0.1:0"] * 3
    assert {config.cluster.etcd for config in configs} == {(ETCD,)}
    assert {config.cluster.replicas for config in configs} == {1}
    assert {config.processes for config in configs} == {None}, "a process starts no others"


def test_native_servers_have_ports_in_a_row_if_there_are_any(tmp_path: Path):
    plans = planned("native.listen=127.0.0.1:1992")
    assert [loaded(plan, tmp_path).node.native.port for plan in plans] == [1992, 1993, 1994]
    assert len(set(ports(planned("native.listen=127.0.0.1:0"), "native.listen"))) == 3
    assert all("native.listen" not in plan.settings for plan in planned())


def test_all_other_settings_are_those_of_the_command(tmp_path: Path):
    plans = planned(
        "topics.partitions=6", "http.allowed_hosts=a.example,b.example", "topics.replicas=2",
        "kafka.idle_ms_max=5min", "topics.retention_bytes=none",
    )  # fmt: skip
    for plan in plans:
        config = loaded(plan, tmp_path).node
        assert config.broker.num_partitions == 6
        assert config.http_server.allowed_hosts == ("a.example", "b.example")
        assert config.cluster.replicas == 2, "set by the operator"
        assert config.kafka_server.idle_ms_max == 300_000


def test_a_process_does_not_read_settings_of_its_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLSTREAM_PARTITIONS", "9")
    monkeypatch.setenv("MILLSTREAM_CONFIG", "/elsewhere.toml")
    monkeypatch.setenv("OTHER", "kept")
    environment = planned()[0].environment()
    assert environment["OTHER"] == "kept"
    assert not [name for name in environment if name.startswith("MILLSTREAM_")]


def test_advertised_addresses_are_counted_up_too():
    plans = planned("kafka.advertise=node.example:19092", "cluster.peer_advertised=10.0.0.1:700")
    assert ports(plans, "kafka.advertise") == [19092, 19093, 19094]
    assert ports(plans, "cluster.peer_advertised") == [700, 701, 702]


def test_a_free_port_is_picked_once_so_that_a_restart_keeps_it():
    plans = planned("kafka.listen=127.0.0.1:0", "http.listen=127.0.0.1:0")
    picked = ports(plans, "kafka.listen") + ports(plans, "http.listen")
    assert len(set(picked)) == 6
    assert 0 not in picked


def test_processors_are_dealt_out(tmp_path: Path):
    assert [plan.settings["node.cpus"] for plan in planned("node.cpus=0-5")] == [
        (0, 1), (2, 3), (4, 5),
    ]  # fmt: skip
    assert [plan.settings["node.cpus"] for plan in planned()] == [(), (), ()]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            ("kafka.listen=127.0.0.1:9092", "http.listen=127.0.0.1:9094"),
            "kafka.listen is 127.0.0.1:9092 and http.listen is 127.0.0.1:9094, and with 3 processes"
            " each server has 3 ports in a row: the Kafka and the HTTP ports overlap",
        ),
        (
            ("kafka.listen=127.0.0.1:65534",),
            "kafka.listen must have a port of at most 65533 with 3 processes, which use the ports"
            " after it, got 65534",
        ),
    ],
)
def test_ports_that_do_not_fit_are_refused_with_what_does(pairs: tuple[str, ...], message: str):
    with pytest.raises(InvalidConfig) as refused:
        planned(*pairs)
    assert str(refused.value) == message


def test_the_default_ports_of_all_servers_fit_together():
    assert ports(planned(), "kafka.listen") == [9092, 9093, 9094]


# With another etcd, nodes of other machines may be in the same cluster.


def test_with_another_etcd_replicas_are_spread_over_machines():
    settings = planned("cluster.etcd=http://10.0.0.1:2379", "node.id=11", etcd=None)[1].settings
    assert settings["node.id"] == 12
    assert settings["cluster.rack"] == "machine"
    assert settings["cluster.etcd"] == ("http://10.0.0.1:2379",)
    assert "topics.replicas" not in settings


def test_with_another_etcd_ids_are_not_taken_from_the_host_name():
    configuration = load_configuration(
        environment={},
        pairs=("node.processes=3", "cluster.etcd=http://10.0.0.1:2379"),
        host_name="machine-2",
    )
    with pytest.raises(InvalidConfig, match="--node-id must be set with --processes and --etcd"):
        plan_nodes(configuration, etcd=None, format_=EventFormat.JSON, host_name="machine-2")


def test_what_is_written_is_toml(tmp_path: Path):
    document: dict[str, Any] = tomllib.loads(planned('node.data=/da"ta\n')[0].toml())
    assert document["node"]["data"] == '/da"ta\n/node-1'
