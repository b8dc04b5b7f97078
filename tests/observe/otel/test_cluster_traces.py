"""One trace over several nodes: forwarded requests and fetches of replicas are part of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.config.schema import TelemetryConfig
from millstream.protocols.kafka.apis import PRODUCE_KEY
from millstream.protocols.kafka.header import decode_request_header
from millstream.protocols.peer.messages.append_batch import AppendBatchRequest
from millstream.protocols.peer.messages.fetch_batches import FetchBatchesRequest
from millstream.protocols.peer.messages.forward import ForwardRequest
from millstream.tracing import current_traceparent
from tests.cluster.forwarding.cluster_http import create, leader_of, others, url
from tests.cluster.local_cluster import LONG_LEASE_MS, LocalCluster, local_cluster, submit, until
from tests.in_loop import in_loop
from tests.servers.http.calls import ask

from .collector import Collector, running_collector

JSON = {"content-type": "application/json"}
RECORDS = "/v1/topics/t/records"
RECORD = b'{"records": [{"value": "a"}]}'
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"
SERVER, CLIENT = 2, 3
"""Kinds of spans, in OTLP."""


async def request(
    cluster: LocalCluster, node_id: int, method: str, path: str, traceparent: str, body: bytes = b""
) -> None:
    headers = {**(JSON if body else {}), "traceparent": traceparent}
    answer = await asyncio.to_thread(ask, url(cluster, node_id), method, path, body, headers)
    assert answer.status in (200, 201), answer.body


def note_traces(cluster: LocalCluster, node_id: int, kind: type[Any]) -> list[tuple[Any, Any]]:
    """Note the trace of each request of a kind: as it was sent, and while it is processed."""
    part = cluster.nodes[node_id]._cluster
    assert part is not None
    handler = part.listener.handlers[kind]
    noted: list[tuple[Any, Any]] = []

    def note(request: Any, context: Any) -> Any:
        noted.append((context.traceparent, current_traceparent()))
        return handler(request, context)

    part.listener.serve(kind, note)
    return noted


@pytest.mark.parametrize(
    ("method", "factor", "kind"),
    [
        ("POST", 1, AppendBatchRequest),
        ("GET", 1, ForwardRequest),
        ("GET", 2, FetchBatchesRequest),  # A follower asks where the log ends.
    ],
)
@in_loop
async def test_nodes_that_record_no_spans_carry_the_trace_of_a_client_on(
    tmp_path: Path, method: str, factor: int, kind: type[Any]
):
    async with local_cluster(tmp_path, 2, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await create(cluster, "t", factor=factor)
        leader = leader_of(cluster, "t")
        (asked,) = others(cluster, leader)
        await submit(cluster.partition(leader, "t"), "1")
        noted = note_traces(cluster, leader, kind)
        body = RECORD if method == "POST" else b""
        await request(cluster, asked, method, RECORDS, UNSAMPLED, body)
        assert noted
        assert set(noted) == {(UNSAMPLED, UNSAMPLED)}
        noted.clear()
        await request(cluster, asked, method, RECORDS, "nonsense", body)
        assert noted
        assert set(noted) == {(None, None)}


@in_loop
async def test_a_forwarded_append_is_one_trace_over_both_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with running_collector() as collector:
        telemetry = TelemetryConfig(traces=True, traces_ratio=0.0, endpoint=collector.url)
        async with local_cluster(
            tmp_path, 2, lease_ttl_ms=LONG_LEASE_MS, telemetry=telemetry
        ) as cluster:
            await create(cluster, "t", factor=1)
            leader = leader_of(cluster, "t")
            (asked,) = others(cluster, leader)
            await request(cluster, asked, "POST", RECORDS, SAMPLED, RECORD)
            await until(lambda: len(spans_named(collector, "Peer AppendBatch")) == 2)
            await until(lambda: bool(spans_named(collector, "POST /v1/topics/{topic}/records")))
        (http,) = spans_named(collector, "POST /v1/topics/{topic}/records")
        sent, received = sorted(
            spans_named(collector, "Peer AppendBatch"), key=lambda span: -span["kind"]
        )
        assert (sent["kind"], received["kind"]) == (CLIENT, SERVER)
        assert {http["trace"], sent["trace"], received["trace"]} == {TRACE}
        assert [http["parent"], sent["parent"], received["parent"]] == [
            CALLER,
            http["id"],
            sent["id"],
        ]
        assert sent["millstream.peer.node"] == leader
        assert received["millstream.peer.node"] == asked
        assert not spans_named(collector, "Peer PeerFetch"), "nothing else is traced"


@in_loop
async def test_fetches_of_replicas_are_traced_at_both_ends_as_often_as_the_ratio_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with running_collector() as collector:
        telemetry = TelemetryConfig(traces=True, traces_ratio=1.0, endpoint=collector.url)
        async with local_cluster(
            tmp_path, 2, lease_ttl_ms=LONG_LEASE_MS, telemetry=telemetry
        ) as cluster:
            await create(cluster, "t", factor=2)
            await until(lambda: has_pair(spans_named(collector, "Peer PeerFetch")))


# Kafka clients. Their protocol has no place for a trace, so nodes decide, and begin it.


def produce_in_a_transaction(bootstrap: str) -> None:
    """Write to both partitions of a topic, and commit."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce("t", b"in a transaction", partition=partition)
    producer.commit_transaction(60)


@in_loop
async def test_a_transaction_of_a_kafka_client_is_traced_on_every_node_that_takes_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its coordinator writes markers where the partitions are, and their leaders ask it first."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with running_collector() as collector:
        telemetry = TelemetryConfig(traces=True, traces_ratio=1.0, endpoint=collector.url)
        async with local_cluster(
            tmp_path, 2, lease_ttl_ms=LONG_LEASE_MS, telemetry=telemetry
        ) as cluster:
            await create(cluster, "t", factor=1, partitions=2)
            bootstrap = str(cluster.nodes[1].kafka)
            await asyncio.to_thread(produce_in_a_transaction, bootstrap)
            for name in ("Peer WriteMarkers", "Peer VerifyTransaction"):
                await until(lambda name=name: has_pair(spans_named(collector, name)))
            await until(lambda: has_parents(collector, "Peer WriteMarkers", "Kafka EndTxn"))
            await until(lambda: has_parents(collector, "Peer VerifyTransaction", "Kafka Produce"))


def has_parents(collector: Collector, name: str, parent: str) -> bool:
    """Whether all requests of a kind to other nodes were made for requests of another kind."""
    parents = {span["id"]: span["trace"] for span in spans_named(collector, parent)}
    sent = [span for span in spans_named(collector, name) if span["kind"] == CLIENT]
    return bool(sent) and all(parents.get(span["parent"]) == span["trace"] for span in sent)


@in_loop
async def test_a_produce_of_a_kafka_client_shows_how_long_it_waited_for_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Most are answered on the fast path, which is traced as the general one is."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    general: list[int] = []
    monkeypatch.setattr(
        "millstream.servers.kafka.dispatcher.decode_request_header",
        lambda frame: general.append(frame[1]) or decode_request_header(frame),
    )
    with running_collector() as collector:
        telemetry = TelemetryConfig(traces=True, traces_ratio=1.0, endpoint=collector.url)
        async with local_cluster(
            tmp_path, 2, lease_ttl_ms=LONG_LEASE_MS, telemetry=telemetry
        ) as cluster:
            await create(cluster, "t", factor=2)
            bootstrap = str(cluster.nodes[1].kafka)
            await asyncio.to_thread(produce, bootstrap)
            await until(lambda: bool(spans_named(collector, "Kafka Produce")))
            await until(lambda: bool(spans_named(collector, "commit")))
        assert PRODUCE_KEY not in general
        (span,) = spans_named(collector, "Kafka Produce")
        (commit,) = spans_named(collector, "commit")
        assert (span["parent"], span["error"]) == ("", None)
        assert span["messaging.destination.name"] == "t"
        assert (commit["parent"], commit["trace"]) == (span["id"], span["trace"])
        assert span["start"] <= commit["start"] < commit["end"] <= span["end"]


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    headers = [("traceparent", SAMPLED.encode())]
    producer.produce("t", b"first", partition=0, headers=headers)
    assert producer.flush(60) == 0


def has_pair(spans: list[dict[str, Any]]) -> bool:
    """Whether a fetch was recorded by the follower and, as its child, by the leader."""
    sent = {span["id"]: span for span in spans if span["kind"] == CLIENT}
    return any(
        span["kind"] == SERVER
        and span["parent"] in sent
        and span["trace"] == sent[span["parent"]]["trace"]
        for span in spans
    )


def spans_named(collector: Collector, name: str) -> list[dict[str, Any]]:
    return [span for span in list(collector.spans) if span["name"] == name]
