"""The access log: off by default, one event per response, with text of clients escaped."""

from __future__ import annotations

import logging

from millstream.config.schema import HttpConfig
from millstream.observe.logging.formatter import JsonFormatter
from millstream.testing.broker import running_broker
from tests.servers.http.calls import ask

LOGGER = "millstream.servers.http.routing.access_log"


def test_nothing_is_logged_by_default(tmp_path, caplog):
    with caplog.at_level(logging.INFO), running_broker(tmp_path) as node:
        assert ask(node.url, "GET", "/v1/topics").status == 200
    assert [record for record in caplog.records if record.name == LOGGER] == []


def test_each_response_is_one_event_with_what_an_operator_looks_for(tmp_path, caplog):
    config = HttpConfig(access_log=True)
    with caplog.at_level(logging.INFO), running_broker(tmp_path, http_server=config) as node:
        ask(node.url, "PUT", "/v1/topics/orders", b"{}")
        ask(node.url, "GET", "/v1/topics/orders/records?exclude_node=secret")
        ask(node.url, "GET", "/nowhere/%0a%1b%5b2J")
        ask(node.url, "GET", "/v1/topics", None, {"Host": "evil.example"})
    events = [vars(record) for record in caplog.records if record.name == LOGGER]
    assert [(e["method"], e["path"], e["route"], e["status"], e["client"]) for e in events] == [
        ("PUT", "/v1/topics/orders", "/v1/topics/{topic}", 201, "127.0.0.1"),
        ("GET", "/v1/topics/orders/records", "/v1/topics/{topic}/records", 200, "127.0.0.1"),
        ("GET", "/nowhere/\n\x1b[2J", "other", 404, "127.0.0.1"),
        ("GET", "/v1/topics", "other", 421, "127.0.0.1"),
    ]
    assert all(e["took_ms"] >= 0 for e in events)
    line = JsonFormatter().format(caplog.records[-2])
    assert "\n" not in line
    assert "\x1b" not in line
    assert "secret" not in caplog.text


def test_a_websocket_is_logged_when_it_is_accepted_or_refused(tmp_path, caplog):
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    config = HttpConfig(access_log=True)
    with caplog.at_level(logging.INFO), running_broker(tmp_path, http_server=config) as node:
        assert ask(node.url, "GET", "/v1/ws", None, upgrade).status == 101
        refused = upgrade | {"Origin": "https://evil.example"}
        assert ask(node.url, "GET", "/v1/ws", None, refused).status == 403
    events = [vars(record) for record in caplog.records if record.name == LOGGER]
    assert [(e["method"], e["path"], e["status"]) for e in events] == [
        ("GET", "/v1/ws", 101),
        ("GET", "/v1/ws", 403),
    ]
