"""Searching records over HTTP: bounded work for each request, and nothing is missed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.broker.partition import record_search
from millstream.records.compression import Codec
from millstream.records.record import Record
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask
from tests.servers.http.http_topic import HttpTopic


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


@pytest.fixture
def topic(running: RunningBroker) -> HttpTopic:
    """A topic of two partitions with 40 records."""
    made = HttpTopic(running, partitions=2)
    for number in range(40):
        value = {"n": number, "customer": {"country": "DE" if number % 4 else "FR"}}
        made.append(
            {
                "key": f"customer-{number % 5}",
                "value": value,
                "partition": number % 2,
                "timestamp": 1_000 + number,
                "headers": {"trace": f"t{number}"},
            }
        )
    return made


def search(topic: HttpTopic, **query: Any) -> list[int]:
    """Return the `n` of all records that a search finds, request by request."""
    found: list[int] = []
    while True:
        answer = topic.ask("GET", "/search", **query)
        assert answer.status == 200, answer.body
        found += [record["value"]["n"] for record in answer.json["records"]]
        assert (answer.json["remaining"] == 0) == (answer.json["next"] is None)
        if answer.json["next"] is None:
            return sorted(found)
        assert answer.json["next"] != query.get("after"), "a search always gets further"
        query["after"] = answer.json["next"]


def test_a_search_without_conditions_finds_everything(topic: HttpTopic) -> None:
    assert search(topic) == list(range(40))


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"key": "customer-3"}, {3, 8, 13, 18, 23, 28, 33, 38}),
        ({"key": "customer"}, set()),
        ({"key_prefix": "customer-"}, set(range(40))),
        ({"field": "n", "value": "17"}, {17}),
        ({"field": "customer.country", "value": "FR"}, set(range(0, 40, 4))),
        ({"field": "/customer/country", "value": "FR", "key": "customer-0"}, {0, 20}),
        ({"field": "customer.city"}, set()),
        ({"text": '"n": 39'}, {39}),
        ({"text": "t11"}, {11}),
        ({"from_": 1_010, "to": 1_013}, {10, 11, 12}),
        ({"from_": 5_000}, set()),
        ({"to": 1_002}, {0, 1}),
        ({"partition": 1, "to": 1_004}, {1, 3}),
    ],
)
def test_a_search_finds_what_meets_all_conditions(
    topic: HttpTopic, query: dict[str, Any], found: set[int]
) -> None:
    assert search(topic, **query) == sorted(found)
    assert search(topic, **query, limit=1) == sorted(found)


def test_one_request_looks_at_a_limited_number_of_records(
    topic: HttpTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_search, "RECORDS_MAX", 7)
    first = topic.ask("GET", "/search", field="n", value="39").json
    assert first == {"records": [], "next": "0:7", "scanned": 7, "remaining": 33}
    assert search(topic, field="n", value="39") == [39]
    assert search(topic) == list(range(40))


def test_records_of_compressed_batches_are_found(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    records = [Record(b'{"n":%d,"pad":"%s"}' % (n, b"x" * 500)) for n in range(300)]
    topic.append_batch(*records, codec=Codec.ZSTD)
    assert search(topic, field="n", value="299") == [299]


def test_fields_of_messagepack_values_are_found(running: RunningBroker) -> None:
    topic = HttpTopic(running, schema={"format": "msgpack"})
    for number in range(3):
        packed = base64.b64encode(msgspec.msgpack.encode({"n": number})).decode()
        topic.append({"value": {"base64": packed}})
    [record] = topic.ask("GET", "/search", field="n", value="2").json["records"]
    assert record["offset"] == 2


AVRO = '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}'


def test_what_cannot_be_searched_is_refused(running: RunningBroker, topic: HttpTopic) -> None:
    avro = HttpTopic(running, schema={"format": "avro", "schema": AVRO})
    answer = avro.ask("GET", "/search", field="n")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "values of" in answer.message
    assert "are avro: search by key, text or time" in answer.message
    for query, words in (
        ({"value": "1"}, "value needs field"),
        ({"field": "a..b"}, "field must be names separated by dots"),
        ({"after": "x"}, "query is invalid"),
        ({"limit": 0}, "query is invalid"),
    ):
        answer = topic.ask("GET", "/search", **query)
        assert answer.status == 400
        assert words in answer.message
    assert topic.ask("GET", "/search", partition=7).status == 404
    assert topic.ask("GET", "/search", after="9:0").json["next"] is None


def test_deleted_records_are_not_found(topic: HttpTopic) -> None:
    topic.ask("DELETE", "/records", {"before": 10, "partition": 0})
    topic.ask("DELETE", "/records", {"key": "customer-1"})
    rest = set(range(40)) - {n for n in range(20) if n % 2 == 0} - set(range(1, 40, 5))
    assert search(topic) == sorted(rest)


def test_damage_is_told_and_never_looks_like_the_end(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running)
        for number in range(20):
            topic.append({"value": {"n": number, "mark": f"mark-{number:02}"}})
    [log] = [one for one in tmp_path.rglob("*.log") if b"mark-12" in one.read_bytes()]
    data = bytearray(log.read_bytes())
    data[data.index(b"mark-12")] ^= 1
    log.write_bytes(data)
    with running_broker(tmp_path) as running:
        path = f"{topic.path}/search?field=n"
        found: list[int] = []
        after = ""
        while (answer := ask(running.url, "GET", f"{path}&after={after}")).status == 200:
            found += [record["value"]["n"] for record in answer.json["records"]]
            assert answer.json["next"] not in (None, after)
            after = answer.json["next"]
        assert answer.status == 500
        assert found == list(range(12))[: len(found)]
        rest = ask(running.url, "GET", f"{path}&after=0:13").json
        assert [record["value"]["n"] for record in rest["records"]] == list(range(13, 20))
