"""The compose file: one node that only this machine can reach, with Prometheus and Grafana."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from millstream.config.schema import NodeConfig
from tests.deploy.files import DEPLOY, UID, VOLUME, configured, documents, instructions

(COMPOSE,) = documents("compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
NODE = SERVICES["millstream"]


def test_there_is_one_node_and_what_watches_it_is_a_choice():
    assert [name for name, one in SERVICES.items() if "profiles" not in one] == ["millstream"]
    assert set(SERVICES) == {"millstream", "prometheus", "grafana"}


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_can_do_more_than_it_has_to(name: str):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service, f"the image says who: {UID}"


@pytest.mark.parametrize("name", SERVICES)
def test_only_this_machine_reaches_a_port(name: str):
    for port in SERVICES[name]["ports"]:
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port), port


def test_what_is_named_is_there():
    for service in SERVICES.values():
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), volume
    assert (DEPLOY / NODE["build"]["context"] / NODE["build"]["dockerfile"]).exists()


def test_the_node_starts_as_it_is_told_to():
    assert NODE["command"][0] == "--insecure"
    advertise = NODE["command"][NODE["command"].index("--advertise") + 1]
    node = configured(
        DEPLOY / "millstream.toml", "node.insecure=true", f"kafka.advertise={advertise}"
    ).node
    assert [f"127.0.0.1:{one.port}:{one.port}" for one in (node.kafka, node.http)] == NODE["ports"]
    assert str(node.advertised) == advertise == f"localhost:{node.kafka.port}"
    assert NODE["volumes"] == [f"data:{VOLUME}"]


def test_a_node_has_longer_to_stop_than_it_takes():
    assert int(NODE["stop_grace_period"].removesuffix("s")) * 1000 > NodeConfig().drain_ms_max


def test_the_health_check_is_that_of_the_image():
    (image,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    assert NODE["healthcheck"]["test"] == ["CMD", *json.loads(image.partition("CMD ")[2])]


def test_prometheus_finds_the_node_and_grafana_finds_prometheus():
    (scraping,) = documents("prometheus/prometheus.yml")
    (job,) = scraping["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"millstream:{NodeConfig().http.port}"]}]
    assert set(SERVICES["prometheus"]["networks"]) & set(NODE["networks"])
    (sources,) = documents("grafana/provisioning/datasources/prometheus.yml")
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    assert set(SERVICES["grafana"]["networks"]) & set(SERVICES["prometheus"]["networks"])
    (providers,) = documents("grafana/provisioning/dashboards/millstream.yml")
    path = providers["providers"][0]["options"]["path"]
    assert any(f":{path}/millstream.json:" in one for one in SERVICES["grafana"]["volumes"])


def test_rules_are_where_prometheus_looks_for_them():
    (scraping,) = documents("prometheus/prometheus.yml")
    for name in scraping["rule_files"]:
        assert (DEPLOY / "prometheus" / name.removeprefix("/etc/prometheus/")).exists(), name
