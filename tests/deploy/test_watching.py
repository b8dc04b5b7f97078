"""Dashboard and alerts ask for metrics, labels and values that a node tells."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.observe.metrics.node_metrics import SECTIONS
from millstream.testing.broker import running_broker
from tests.cluster.forwarding.cluster_http import send
from tests.cluster.local_cluster import LONG_LEASE_MS, local_cluster, until
from tests.deploy.files import ROOT, dashboard, documents
from tests.servers.http.calls import ask

LABELS = {
    name: {*section.labels, *metric.labels_of(samples[0])}
    for section in SECTIONS
    for metric in section.metrics
    for name, _, samples in metric.parts()
}
THEIRS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
"""What Prometheus itself and its client library tell."""

SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""

PANELS = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
(ALERTS,) = documents("prometheus/alerts.yml")
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
EXPRESSIONS = [
    *(
        pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
        for panel in PANELS
        for target in panel["targets"]
    ),
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES),
]
CLUSTER_METRICS = {
    "lag in records": "millstream_replica_lag_records",
    "lag in bytes": "millstream_replica_lag_bytes",
    "lag in seconds": "millstream_replica_lag_seconds",
    "ISR size": "millstream_replica_isr_replicas",
    "under-replicated": "millstream_replica_under_replicated_partitions",
    "too few in sync": "millstream_replica_under_min_insync_partitions",
    "leader changes": "millstream_replica_leader_changes_total",
    "ISR shrinks": "millstream_replica_isr_shrinks_total",
    "ISR growths": "millstream_replica_isr_growths_total",
    "position mismatches": "millstream_replica_position_mismatches_total",
    "resync bytes": "millstream_replica_resync_bytes_total",
    "forwards by outcome": "millstream_peer_forwards_total",
    "breaker state": "millstream_peer_breaker_flag",
    "drift": "millstream_peer_clock_drift_seconds",
    "seconds without quorum": "millstream_replica_without_quorum_seconds",
    "metadata latency": "millstream_metadata_call_duration_seconds_bucket",
}
"""What is watched of a cluster, and where it is told."""

ALERTED_BY_ANOTHER = {"lag in records", "lag in bytes", "ISR size"}
"""How much is too much depends on the topic: lag in seconds, and partitions with too few replicas
in sync, have alerts."""

MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def used(expression: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield every metric of an expression, with what its labels have to match."""
    for name, matchers in re.findall(
        r"\b((?:millstream|process)_\w+|up\b)(?:\{(.*?)\})?(?=[\[\s)]|$)", expression
    ):
        yield name, MATCHER.findall(matchers)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Metrics of a node with a topic and a queue, and of one in a cluster."""
    path: Path = tmp_path_factory.mktemp("node")
    with running_broker(path) as broker:
        json = {"content-type": "application/json"}
        body = b'{"records": [{"value": "a"}]}'
        assert ask(broker.url, "PUT", "/v1/queues/mail", b"{}", json).status == 201
        assert ask(broker.url, "POST", "/v1/topics/mail/records", body, json).status == 201
        alone = ask(broker.url, "GET", "/metrics").body.decode()
    return alone + asyncio.run(told_in_a_cluster(tmp_path_factory.mktemp("cluster")))


async def told_in_a_cluster(path: Path) -> str:
    async with local_cluster(path, 2, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("orders", partitions=4)
        leader = cluster.leader_of("orders")
        assert leader is not None
        await until(lambda: bool(list(cluster.member(leader).replicas.lags())))
        metrics = [await send(cluster, node_id, "GET", "/metrics") for node_id in (1, 2)]
        return "".join(answer.body.decode() for answer in metrics)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_and_label_is_one_that_a_node_tells(expression: str):
    found = dict(used(expression))
    assert found
    assert len(re.findall(r"millstream_\w+", expression)) == len(
        [name for name, _ in used(expression) if name.startswith("millstream")]
    )
    known = set(SCRAPED)
    for name, matchers in found.items():
        assert name in LABELS or name in THEIRS, name
        labels = LABELS.get(name, set()) | SCRAPED
        assert {label for label, _, _ in matchers} <= labels
        known |= labels
    for grouped in re.findall(r"\b(?:by|on) \((.*?)\)", expression):
        assert set(grouped.split(", ")) <= known, grouped
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_value_that_is_asked_for_is_there(expression: str, told: str):
    for name, matchers in used(expression):
        for label, kind, value in matchers:
            if kind == "=" and label not in SCRAPED:
                assert re.search(rf'^{name}{{.*{label}="{value}"', told, re.MULTILINE), value


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_only_rises_is_shown_as_a_rate(expression: str):
    counters = {name for name, _ in used(expression) if name.endswith("_total")}
    for name in counters:
        assert re.search(rf"(rate|increase)\({name}(\{{[^}}]*\}})?\[", expression), name


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_legends_name_labels_that_are_left(panel: dict):
    for target in panel["targets"]:
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        for grouped in re.findall(r"\bby \((.*?)\)", target["expr"]) or [""]:
            assert named <= set(grouped.split(", "))


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells


def test_variables_that_are_used_are_there_and_ask_for_metrics_that_are():
    listed = {one["name"]: one for one in dashboard()["templating"]["list"]}
    text = str(dashboard())
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == set(listed)
    for one in listed.values():
        if one["type"] == "query":
            name, label = re.fullmatch(
                r"label_values\((\w+), (\w+)\)", one["query"]["query"]
            ).groups()
            assert label in LABELS[name] | SCRAPED


@pytest.mark.parametrize("what", CLUSTER_METRICS)
def test_everything_that_is_watched_of_a_cluster_is_told_shown_and_alerted(what: str, told: str):
    name = CLUSTER_METRICS[what]
    assert re.search(rf"^{name}[{{ ]", told, re.MULTILINE)
    shown = {name for panel in PANELS for one in panel["targets"] for name, _ in used(one["expr"])}
    assert name in shown
    alerted = {name for rule in RULES for name, _ in used(rule["expr"])}
    assert (name in alerted) == (what not in ALERTED_BY_ANOTHER)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict):
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "action"}
    for page in re.findall(r"docs/\S+\.md", rule["annotations"]["action"]):
        assert (ROOT / page).exists()
