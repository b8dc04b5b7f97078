"""`/metrics` in both formats: what Prometheus reads, read by its own client library."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from millstream.testing.broker import running_broker
from tests.servers.http.calls import ask

BODY = b'{"records": [{"value": 1}]}'
OPEN = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """The metrics of a node with some of everything, in both formats."""
    with running_broker(tmp_path_factory.mktemp("data")) as node:
        assert ask(node.url, "POST", "/v1/topics/a/records", BODY).status == 201
        assert ask(node.url, "PUT", "/v1/queues/q", b"{}").status in (200, 201)
        plain = ask(node.url, "GET", "/metrics")
        open_ = ask(node.url, "GET", "/metrics", None, {"Accept": OPEN})
    return plain, open_


def test_both_formats_have_the_same_metrics(scraped):
    plain, open_ = scraped
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert open_.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert open_.body.endswith(b"# EOF\n")
    names = [
        {
            sample.name
            for family in parse(answer.body.decode())
            for sample in family.samples
            if family.name.startswith("millstream")
        }
        for parse, answer in ((parse_plain, plain), (parse_open, open_))
    ]
    assert names[0] == names[1]
    assert len(names[0]) > 100


def test_every_metric_is_typed_described_and_named_by_the_rules(scraped):
    """The rules that `promtool check metrics` applies."""
    for family in parse_open(scraped[1].body.decode()):
        if not family.name.startswith("millstream"):
            continue
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram"), family.name
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))
        names = {sample.name.removeprefix(family.name) for sample in family.samples}
        labels = {label for sample in family.samples for label in sample.labels}
        if family.type == "counter":
            assert names <= {"_total"}
        if family.type == "histogram":
            assert names <= {"_bucket", "_sum", "_count"}
        else:
            assert "le" not in labels, family.name
