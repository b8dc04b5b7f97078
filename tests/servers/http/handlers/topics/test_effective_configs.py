"""The effective configs of a topic over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.broker.topics.configs.topic_settings import TOPIC_CONFIGS
from millstream.config.schema import LogConfig
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask
from tests.servers.http.http_topic import HttpTopic


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    log = LogConfig(segment_bytes_max=123_456)
    with running_broker(tmp_path_factory.mktemp("node"), log=log) as broker:
        yield broker


def test_every_config_is_listed_with_its_value_and_where_it_is_from(running: RunningBroker) -> None:
    topic = HttpTopic(running, configs={"retention.ms": "86400000"})
    listed = topic.ask("GET", "/configs").json["configs"]
    assert [config["name"] for config in listed] == sorted(TOPIC_CONFIGS)
    by_name = {config["name"]: config for config in listed}
    retention = by_name["retention.ms"]
    assert (retention["value"], retention["is_set"]) == ("86400000", True)
    assert retention["default"] == "604800000"
    segment = by_name["segment.bytes"]
    assert (segment["value"], segment["default"], segment["is_set"]) == ("123456", "123456", False)
    assert all(config["allowed"] and config["meaning"] for config in listed)
    assert {config["effect"] for config in listed} == {"applied", "accepted"}
    topic.ask("PUT", "", {"configs": {"retention.ms": None}})
    listed = topic.ask("GET", "/configs").json["configs"]
    assert not any(config["is_set"] for config in listed)


def test_an_unknown_topic_has_no_configs(running: RunningBroker) -> None:
    assert ask(running.url, "GET", "/v1/topics/nothing/configs").code == "unknown_topic"
