"""The Kubernetes manifest: objects that refer to each other, and to what a node does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.config.schema import GIB, NodeConfig
from millstream.observe.loop_watch import INTERVAL_SECONDS, LATE_TICKS_MIN
from tests.deploy.files import ROUTES, UID, VOLUME, configured, documents

OBJECTS = {
    (one["kind"], one["metadata"]["name"]): one for one in documents("kubernetes/millstream.yaml")
}
VERSIONS = {
    "ServiceAccount": "v1",
    "ConfigMap": "v1",
    "Service": "v1",
    "StatefulSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}
SET = OBJECTS["StatefulSet", "millstream"]["spec"]
POD = SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
LABELS = SET["template"]["metadata"]["labels"]
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
SERVICES = [one for (kind, _), one in OBJECTS.items() if kind == "Service"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file that the node is given."""
    path = tmp_path / "millstream.toml"
    path.write_text(OBJECTS["ConfigMap", "millstream"]["data"]["millstream.toml"])
    path.chmod(0o644)
    return path


def started(file: Path) -> NodeConfig:
    variables = {one["name"]: one["value"] for one in CONTAINER["env"] if "value" in one}
    for name, value in (("POD_NAME", "millstream-0"), ("POD_NAMESPACE", "some")):
        variables = {k: v.replace(f"$({name})", value) for k, v in variables.items()}
    assert CONTAINER["args"] == ["--insecure"]
    return configured(file, "node.insecure=true", **variables).node


def test_every_object_has_the_version_of_its_kind_and_a_name():
    assert {kind: one["apiVersion"] for (kind, _), one in OBJECTS.items()} == VERSIONS
    assert len(OBJECTS) == len(documents("kubernetes/millstream.yaml"))


def test_the_node_takes_its_file_and_says_so(file: Path):
    result = CliRunner().invoke(main, ["config", "check", "--config", str(file), "--insecure"])
    assert result.exit_code == 0, result.output


def test_ports_are_those_that_the_node_listens_on(file: Path):
    node = started(file)
    assert {"kafka": node.kafka.port, "http": node.http.port} == PORTS
    assert {"kafka": NodeConfig().kafka.port, "http": NodeConfig().http.port} == PORTS
    assert {node.kafka.host, node.http.host} == {"0.0.0.0"}
    annotations = SET["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(node.http.port)
    assert annotations["prometheus.io/path"] in ROUTES


def test_clients_are_told_the_name_that_the_headless_service_gives(file: Path):
    advertised = started(file).advertised
    assert str(advertised) == f"millstream-0.{SET['serviceName']}.some.svc:{PORTS['kafka']}"
    assert OBJECTS["Service", SET["serviceName"]]["spec"]["clusterIP"] == "None"
    names = [one["name"] for one in CONTAINER["env"]]
    assert names[-1] == "MILLSTREAM_KAFKA_ADVERTISE", "a variable sees those before it only"


def test_there_is_one_node_and_nothing_takes_it_away():
    assert SET["replicas"] == 1
    assert OBJECTS["PodDisruptionBudget", "millstream"]["spec"]["maxUnavailable"] == 0


def test_selectors_find_the_pod():
    assert SET["selector"]["matchLabels"].items() <= LABELS.items()
    for service in SERVICES:
        assert service["spec"]["selector"].items() <= LABELS.items()
        for port in service["spec"]["ports"]:
            assert PORTS[port["targetPort"]] == port["port"]
    budget = OBJECTS["PodDisruptionBudget", "millstream"]["spec"]["selector"]["matchLabels"]
    policy = OBJECTS["NetworkPolicy", "millstream"]["spec"]["podSelector"]["matchLabels"]
    assert budget == policy == SET["selector"]["matchLabels"]


@pytest.mark.parametrize("name", ["startup", "liveness", "readiness"])
def test_probes_ask_the_http_server(name: str):
    asked = CONTAINER[f"{name}Probe"]["httpGet"]
    paths = {"startup": "startup", "liveness": "live", "readiness": "ready"}
    assert asked["path"] == f"/health/{paths[name]}"
    assert asked["path"] in ROUTES
    assert PORTS[asked["port"]] == NodeConfig().http.port


def test_the_pod_waits_for_longer_than_stopping_may_take(file: Path):
    node = started(file)
    assert POD["terminationGracePeriodSeconds"] * 1000 > node.drain_ms_max
    assert 0 < node.drain_notice_ms < node.drain_ms_max


def test_probes_tell_a_stuck_loop_before_they_restart_it(file: Path):
    """A node is sent no clients long before it is ended: half a minute may pass by itself."""
    readiness, liveness = CONTAINER["readinessProbe"], CONTAINER["livenessProbe"]
    unready = readiness["periodSeconds"] * readiness["failureThreshold"]
    ended = liveness["periodSeconds"] * liveness["failureThreshold"]
    assert unready <= 15
    assert ended >= 30
    late = LATE_TICKS_MIN * (INTERVAL_SECONDS + started(file).loop_lag_ms_max / 1000)
    assert late < ended
    assert liveness["httpGet"]["path"] != readiness["httpGet"]["path"]


def test_the_node_can_do_no_more_than_it_has_to():
    pod = POD["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert {pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]} == {UID}
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert ("ServiceAccount", POD["serviceAccountName"]) in OBJECTS
    assert POD["automountServiceAccountToken"] is False


def test_data_lies_in_the_volume_and_the_file_where_the_image_looks(file: Path):
    mounts = {one["mountPath"]: one["name"] for one in CONTAINER["volumeMounts"]}
    assert mounts == {VOLUME: "data", "/etc/millstream": "config"}
    assert [one["metadata"]["name"] for one in SET["volumeClaimTemplates"]] == ["data"]
    (volume,) = POD["volumes"]
    assert ("ConfigMap", volume["configMap"]["name"]) in OBJECTS
    assert volume["name"] == "config"
    assert started(file).data.startswith(f"{VOLUME}/")


def test_what_a_node_may_hold_leaves_half_of_its_memory(file: Path):
    node = started(file)
    held = [
        node.kafka_server.receive_bytes_max,
        node.http_server.receive_bytes_max,
        node.http_server.output_bytes_max,
        node.store.unflushed_bytes_max,
        node.store.ephemeral_bytes_max,
        node.store.cleaning_memory_bytes_max,
    ]
    memory = {CONTAINER["resources"][kind]["memory"] for kind in ("requests", "limits")}
    assert memory == {"2Gi"}
    assert sum(held) <= 2 * GIB // 2


def test_only_labelled_pods_get_in():
    policy: dict[str, Any] = OBJECTS["NetworkPolicy", "millstream"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"millstream-client": "true"}}}]
    assert {port["port"] for port in rule["ports"]} == set(PORTS)
    assert policy["egress"] == []
