"""Metrics of streams: create, append, duplicate append, read and close."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask

TEXT = {"content-type": "text/plain"}
FROM_ONE = {**TEXT, "producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}


def metrics_of(broker: RunningBroker) -> dict[tuple[str, ...], float]:
    text = ask(broker.url, "GET", "/metrics").body.decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_life_of_a_stream_is_counted(tmp_path: Path):
    with running_broker(tmp_path) as broker:
        path = "/v1/streams/news"
        assert ask(broker.url, "PUT", path, b"", TEXT).status == 201
        for _ in range(2):  # The second append is a retry.
            assert ask(broker.url, "POST", path, b"hello", FROM_ONE).status in (200, 204)
        assert ask(broker.url, "GET", path).status == 200
        assert ask(broker.url, "GET", f"{path}?offset=-1&live=long-poll").status == 200
        assert ask(broker.url, "POST", path, b"", {**TEXT, "stream-closed": "true"}).status == 204
        before = metrics_of(broker)
        assert ask(broker.url, "DELETE", path).status == 204
        after = metrics_of(broker)
    assert before["millstream_broker_streams",] == 1
    assert before["millstream_stream_creations_total",] == 1
    assert before["millstream_stream_appends_total", "stored"] == 1
    assert before["millstream_stream_appends_total", "duplicate"] == 1
    assert before["millstream_stream_records_total",] == 1
    assert before["millstream_stream_appended_bytes_total",] == 5
    assert before["millstream_stream_closes_total",] == 1
    assert before["millstream_stream_reads_total", "catch-up"] == 1
    assert before["millstream_stream_reads_total", "long-poll"] == 1
    assert before["millstream_stream_reads_total", "sse"] == 0
    assert before["millstream_stream_waiting_requests",] == 0
    assert after["millstream_broker_streams",] == 0
    assert after["millstream_stream_deletions_total",] == 1
    assert after["millstream_stream_expirations_total",] == 0


def test_times_of_commits_and_requests_are_told_by_how_long_they_took(tmp_path: Path):
    with running_broker(tmp_path) as broker:
        headers = {"content-type": "application/json"}
        body = b'{"records": [{"value": "a"}]}'
        for _ in range(3):
            assert ask(broker.url, "POST", "/v1/topics/t/records", body, headers).status == 201
        metrics = metrics_of(broker)
    commits = [
        value
        for key, value in metrics.items()
        if key[0] == "millstream_store_commit_duration_seconds_bucket"
    ]
    assert commits == sorted(commits), "what is within a bound is within the next"
    assert metrics["millstream_store_commit_duration_seconds_bucket", "+Inf"] >= 1
    assert (
        metrics["millstream_store_commit_duration_seconds_bucket", "+Inf"]
        == metrics["millstream_store_sync_duration_seconds_bucket", "+Inf"]
    )
    assert metrics["millstream_kafka_request_duration_seconds_bucket", "Produce", "+Inf"] == 0
    assert metrics["millstream_store_damaged_logs",] == 0
    assert metrics["millstream_log_waited_appends_total", "t", "0", "log"] == 0
