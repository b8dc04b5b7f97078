"""The Kubernetes manifest of a cluster: three nodes with ids of their own, and three etcd."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from millstream.config.loader import load_configuration
from millstream.config.schema import GIB, NodeConfig
from tests.deploy.files import ROUTES, UID, VOLUME, documents, instructions

OBJECTS = {
    (one["kind"], one["metadata"]["name"]): one for one in documents("kubernetes/cluster.yaml")
}
SET = OBJECTS["StatefulSet", "millstream"]["spec"]
POD = SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
ETCD = OBJECTS["StatefulSet", "millstream-etcd"]["spec"]
(ETCD_CONTAINER,) = ETCD["template"]["spec"]["containers"]
ETCD_PORTS = {port["name"]: port["containerPort"] for port in ETCD_CONTAINER["ports"]}
SETS = {"millstream": SET, "millstream-etcd": ETCD}


def started(tmp_path: Path, number: int) -> NodeConfig:
    """Return what the node in the pod with this number starts with."""
    file = tmp_path / "millstream.toml"
    file.write_text(OBJECTS["ConfigMap", "millstream"]["data"]["millstream.toml"])
    file.chmod(0o644)
    pod = f"millstream-{number}"
    variables = {
        one["name"]: one["value"].replace("$(POD_NAME)", pod).replace("$(POD_NAMESPACE)", "some")
        for one in CONTAINER["env"]
        if "value" in one
    }
    assert CONTAINER["args"] == ["--insecure"]
    return load_configuration(
        environment=variables, config=str(file), pairs=["node.insecure=true"], host_name=pod
    ).node


def test_each_pod_is_a_node_with_the_number_of_its_name(tmp_path: Path):
    nodes = [started(tmp_path, number) for number in range(SET["replicas"])]
    assert [node.broker.node_id for node in nodes] == [0, 1, 2]
    assert [str(node.cluster.peer_advertised) for node in nodes] == [
        f"millstream-{number}.{SET['serviceName']}.some.svc:{PORTS['peer']}" for number in range(3)
    ]
    assert [str(node.advertised) for node in nodes] == [
        f"millstream-{number}.{SET['serviceName']}.some.svc:{PORTS['kafka']}" for number in range(3)
    ]
    assert [one["name"] for one in CONTAINER["env"]][:2] == ["POD_NAME", "POD_NAMESPACE"]


def test_ports_are_those_that_a_node_listens_on(tmp_path: Path):
    node = started(tmp_path, 0)
    listening = {"kafka": node.kafka, "http": node.http, "peer": node.cluster.peer}
    assert {name: one.port for name, one in listening.items()} == PORTS
    assert {one.host for one in listening.values()} == {"0.0.0.0"}
    for name in ("startup", "liveness", "readiness"):
        probe = CONTAINER[f"{name}Probe"]["httpGet"]
        assert probe["path"] in ROUTES
        assert probe["port"] == "http"


def test_nodes_know_all_members_of_etcd(tmp_path: Path):
    members = [f"millstream-etcd-{number}" for number in range(ETCD["replicas"])]
    service = ETCD["serviceName"]
    assert started(tmp_path, 0).cluster.etcd == tuple(
        f"http://{member}.{service}:{ETCD_PORTS['client']}" for member in members
    )
    (known,) = [one for one in ETCD_CONTAINER["args"] if one.startswith("--initial-cluster=")]
    assert known.partition("=")[2].split(",") == [
        f"{member}=http://{member}.{service}:{ETCD_PORTS['peer']}" for member in members
    ]


@pytest.mark.parametrize("name", SETS)
def test_pods_find_each_other_before_they_are_ready_and_start_together(name: str):
    service = OBJECTS["Service", SETS[name]["serviceName"]]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert SETS[name]["podManagementPolicy"] == "Parallel"


@pytest.mark.parametrize("name", SETS)
def test_one_of_three_may_be_missing_and_no_two_are_on_one_machine(name: str):
    assert SETS[name]["replicas"] == 3
    budget = OBJECTS["PodDisruptionBudget", name]["spec"]
    assert budget["maxUnavailable"] == 1
    labels = SETS[name]["selector"]["matchLabels"]
    assert budget["selector"]["matchLabels"] == labels
    (rule,) = SETS[name]["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == labels


@pytest.mark.parametrize("name", SETS)
def test_selectors_find_the_pods_and_services_their_ports(name: str):
    template = SETS[name]["template"]
    assert SETS[name]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = PORTS if name == "millstream" else ETCD_PORTS
    services = [
        one["spec"]
        for (kind, _), one in OBJECTS.items()
        if kind == "Service" and one["spec"]["selector"] == SETS[name]["selector"]["matchLabels"]
    ]
    assert services
    for service in services:
        for port in service["ports"]:
            assert ports[port["targetPort"]] == port["port"]


@pytest.mark.parametrize("name", SETS)
def test_nothing_can_do_more_than_it_has_to(name: str):
    pod = SETS[name]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"]
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (claim,) = SETS[name]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    retained = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert SETS[name]["persistentVolumeClaimRetentionPolicy"] == retained


def test_the_node_is_the_user_of_the_image_and_stores_in_its_volume(tmp_path: Path):
    assert POD["securityContext"]["runAsUser"] == UID
    mounts = {one["mountPath"]: one["name"] for one in CONTAINER["volumeMounts"]}
    assert mounts == {VOLUME: "data", "/etc/millstream": "config"}
    assert started(tmp_path, 0).data.startswith(f"{VOLUME}/")


def test_a_pod_has_longer_to_stop_than_a_node_takes_to_hand_over(tmp_path: Path):
    node = started(tmp_path, 0)
    assert POD["terminationGracePeriodSeconds"] * 1000 > node.drain_ms_max
    assert 0 < node.drain_notice_ms < node.drain_ms_max


def test_what_a_node_may_hold_leaves_half_of_its_memory(tmp_path: Path):
    node = started(tmp_path, 0)
    held = [
        node.kafka_server.receive_bytes_max,
        node.http_server.receive_bytes_max,
        node.http_server.output_bytes_max,
        node.store.unflushed_bytes_max,
        node.store.ephemeral_bytes_max,
        node.store.cleaning_memory_bytes_max,
    ]
    assert CONTAINER["resources"]["limits"]["memory"] == "2Gi"
    assert sum(held) <= 2 * GIB // 2


def allowed(policy: dict[str, Any], direction: str) -> set[tuple[str, str]]:
    """Return who may connect and to which port, by the labels in a policy."""
    side = "from" if direction == "ingress" else "to"
    return {
        (next(iter(peer["podSelector"]["matchLabels"].values())), str(port["port"]))
        for rule in policy[direction]
        for peer in rule.get(side, ())
        for port in rule["ports"]
    }


def test_clients_reach_only_what_is_for_them_and_only_nodes_reach_etcd():
    nodes = OBJECTS["NetworkPolicy", "millstream"]["spec"]
    assert allowed(nodes, "ingress") == {
        ("true", "kafka"),
        ("true", "http"),
        ("millstream", "peer"),
    }
    assert allowed(nodes, "egress") == {
        ("millstream", str(PORTS["peer"])),
        ("millstream-etcd", str(ETCD_PORTS["client"])),
    }
    etcd = OBJECTS["NetworkPolicy", "millstream-etcd"]["spec"]
    assert allowed(etcd, "ingress") == {("millstream", "client"), ("millstream-etcd", "peer")}
    assert allowed(etcd, "egress") == {("millstream-etcd", str(ETCD_PORTS["peer"]))}


def test_the_image_of_etcd_runs_as_the_user_of_its_pod_and_stores_in_its_volume():
    image = dict(instructions("etcd.Containerfile"))
    security = ETCD["template"]["spec"]["securityContext"]
    assert image["USER"] == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert json.loads(image["ENTRYPOINT"]) == ["etcd"]
    assert "apt-get install --yes --no-install-recommends etcd-server etcd-client" in image["RUN"]
    (mount,) = ETCD_CONTAINER["volumeMounts"]
    assert mount["mountPath"] == image["VOLUME"]
    assert f"--data-dir={image['VOLUME']}/data" in ETCD_CONTAINER["args"]


def test_a_member_of_etcd_without_the_others_is_not_restarted():
    assert "httpGet" not in ETCD_CONTAINER["livenessProbe"]
    assert ETCD_CONTAINER["readinessProbe"]["httpGet"]["path"] == "/health"


@pytest.mark.parametrize("number", range(3))
def test_etcd_knows_the_options_that_it_is_given(number: int, tmp_path: Path):
    """A member that cannot find the others says that, and not that an option is wrong."""
    pod = f"millstream-etcd-{number}"
    args = [
        one.replace("$(POD_NAME)", pod).replace("/var/lib/millstream-etcd", str(tmp_path))
        for one in ETCD_CONTAINER["args"]
    ]
    assert not [one for one in args if "$(" in one]
    known = subprocess.run(["etcd", "--help"], capture_output=True, text=True, check=False)
    for one in args:
        assert f"{one.partition('=')[0]} " in known.stdout + known.stderr, one
