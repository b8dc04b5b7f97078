"""The list of publishers that write exactly once."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from millstream.broker.transactions.publication import CLIENT_ID_LENGTH_MAX, PublicationProposal
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.publication import publish
from millstream.protocols.kafka.pipeline_client_id import pipeline_client_id, pipeline_of
from millstream.servers.http.handlers import pipelines
from millstream.testing.broker import running_broker
from tests.servers.http.app_node import AppNode, with_app_node
from tests.servers.http.calls import ask


async def publishes(node: AppNode, name: str, sequence: int = 0, client_id: str = "") -> None:
    proposal = PublicationProposal(publisher=name, sequence=sequence, client_id=client_id)
    await node.broker.transactions.publish(proposal)


async def listed(node: AppNode, limit: int = 100) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        answer = await node.ask("GET", f"/v1/pipelines?limit={limit}&after={quote(after)}")
        found += answer["pipelines"]
        if answer["next"] is None:
            return found
        after = answer["next"]


@with_app_node
async def test_a_publisher_is_told_with_its_name_kind_and_last_publication(node: AppNode) -> None:
    await publishes(node, "spark-query/1", 16)
    await publishes(node, "spark-query/1", 17, pipeline_client_id("clicks", "by-hour"))
    node.timers.advance(1.5)
    (found,) = await listed(node)
    assert found["age_ms"] >= 1_500
    assert {**found, "age_ms": 0} == {
        "publisher": "spark-query/1",
        "name": "clicks/by-hour",
        "kind": "stream",
        "sequence": 17,
        "age_ms": 0,
    }


@with_app_node
async def test_the_kind_is_what_the_sinks_of_spark_make_it(node: AppNode) -> None:
    for name in ("spark-query/1", "spark-job/1", "spark-queryless", "mine"):
        await publishes(node, name, client_id="millstream-spark")
    found = {one["publisher"]: (one["kind"], one["name"]) for one in await listed(node)}
    assert found == {
        "spark-query/1": ("stream", None),
        "spark-job/1": ("job", None),
        "spark-queryless": ("other", None),
        "mine": ("other", None),
    }


@with_app_node
async def test_who_published_last_comes_first_whatever_the_size_of_a_page(node: AppNode) -> None:
    names = [f"p{number}:/ä" for number in range(7)]
    for name in names:
        await publishes(node, name)
        node.timers.advance(1)
    await publishes(node, "p2:/ä", 5)
    expected = ["p2:/ä", *(name for name in reversed(names) if name != "p2:/ä")]
    kept = pipelines.PUBLISHERS_PER_TURN
    try:
        for at_once in (2, kept):
            pipelines.PUBLISHERS_PER_TURN = at_once
            for limit in (1, 3, 100):
                assert [one["publisher"] for one in await listed(node, limit)] == expected
    finally:
        pipelines.PUBLISHERS_PER_TURN = kept


@with_app_node
async def test_no_more_is_remembered_of_a_client_id_than_may_be(node: AppNode) -> None:
    await publishes(node, "p", client_id="pipeline:" + "x" * 30_000)
    (found,) = await listed(node)
    assert len(found["name"]) == CLIENT_ID_LENGTH_MAX - len("pipeline:")


@with_app_node
async def test_a_sequence_that_was_given_up_makes_nobody_a_publisher(node: AppNode) -> None:
    proposal = PublicationProposal(publisher="p", sequence=0, is_commit=False)
    await node.broker.transactions.publish(proposal)
    assert await listed(node) == []


@with_app_node
async def test_a_page_that_is_none_is_malformed(node: AppNode) -> None:
    for after in ("x", ":", "1:", "-1:p"):
        status, answer = await node.begin("GET", f"/v1/pipelines?after={after}").answer()
        assert (status, answer["error"]["code"]) == (400, "malformed_request"), after


def test_a_client_says_its_name_and_a_restart_forgets_it(tmp_path: Any) -> None:
    with running_broker(tmp_path) as running:
        client_id = pipeline_client_id("clicks", "by-hour")
        with KafkaClient(running.bootstrap, client_id=client_id) as client:
            publish(client, publisher="spark-query/1", sequence=3, transactions=[])
        (found,) = ask(running.url, "GET", "/v1/pipelines").json["pipelines"]
        assert (found["name"], found["sequence"]) == ("clicks/by-hour", 3)
    with running_broker(tmp_path) as running:
        (found,) = ask(running.url, "GET", "/v1/pipelines").json["pipelines"]
        assert (found["name"], found["sequence"]) == (None, 3)


@pytest.mark.parametrize(
    ("client_id", "name"),
    [
        ("pipeline:clicks/by-hour", "clicks/by-hour"),
        ("pipeline:", None),
        ("millstream-spark", None),
        ("", None),
    ],
)
def test_a_name_is_what_follows_the_word_pipeline(client_id: str, name: str | None) -> None:
    assert pipeline_of(client_id) == name
