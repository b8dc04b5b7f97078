"""A page watches a topic, loses its connection, and resumes, with the browser's EventSource."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.testing.broker import RunningBroker
from tests.browser.chromium import Chromium
from tests.browser.site import Site, running_site
from tests.servers.http.live.live_topic import LiveTopic

WATCH = """
    window.seen = [];
    window.kinds = new Set();
    window.source = new EventSource("/v1/events?topic=TOPIC");
    for (const kind of ["records", "gap", "heartbeat", "lagged", "end"])
        source.addEventListener(kind, event => {
            kinds.add(kind);
            const data = JSON.parse(event.data);
            for (const record of data.records || [])
                seen.push([record.value, event.lastEventId]);
            window.wake && wake();
        });
    window.until = holds => new Promise(done => {
        window.wake = () => holds() && done();
        wake();
    });
    until(() => kinds.has("heartbeat"))
"""


@pytest.fixture(scope="module")
def site(node: RunningBroker) -> Iterator[Site]:
    with running_site(node.url) as running:
        yield running


def test_an_event_source_misses_nothing_though_its_connection_is_cut(
    node: RunningBroker, site: Site, chromium: Chromium
) -> None:
    topic = LiveTopic(node)
    topic.append("before")
    with chromium.page(site.url) as page:
        page.run(WATCH.replace("TOPIC", topic.name))
        topic.append({"n": 1}, {"n": 2})
        page.run("until(() => seen.length === 2)")
        site.cut()
        topic.append({"n": 3})
        page.run("until(() => seen.length === 3)")
        topic.append({"n": 4})
        page.run("until(() => seen.length === 4)")
        found = page.run("seen")
        page.run("source.close()")
    assert found == [
        [{"n": 1}, topic.cursor(3)],
        [{"n": 2}, topic.cursor(3)],
        [{"n": 3}, topic.cursor(4)],
        [{"n": 4}, topic.cursor(5)],
    ]


def test_a_page_subscribes_and_appends_by_websocket(
    node: RunningBroker, site: Site, chromium: Chromium
) -> None:
    topic = LiveTopic(node)
    script = """
        new Promise((done, fail) => {
            const told = [];
            const socket = new WebSocket(`ws://${location.host}/v1/ws`);
            socket.onerror = () => fail(new Error("refused"));
            socket.onopen = () => {
                socket.send(JSON.stringify({op: "subscribe", id: 1, topics: ["TOPIC"]}));
                socket.send(JSON.stringify(
                    {op: "append", id: 2, topic: "TOPIC", records: [{value: "über"}]}));
            };
            socket.onmessage = event => {
                told.push(JSON.parse(event.data));
                if (told.length === 3) { socket.close(); done(told); }
            };
        })
    """
    with chromium.page(site.url) as page:
        told = page.run(script.replace("TOPIC", topic.name))
    by_kind = {one["type"]: one for one in told if one["type"] != "answer"}
    answers = {one["id"]: one["result"] for one in told if one["type"] == "answer"}
    assert answers[1] == {"cursor": topic.cursor(0)}
    assert answers[2]["offsets"] == [0]
    assert [record["value"] for record in by_kind["records"]["records"]] == ["über"]


def test_a_page_of_another_site_can_neither_watch_nor_talk(
    node: RunningBroker, site: Site, chromium: Chromium
) -> None:
    topic = LiveTopic(node)
    topic.append("secret")
    watch = """
        new Promise(done => {
            const source = new EventSource("NODE/v1/events?topic=TOPIC&from=earliest");
            source.onopen = () => done("open");
            source.onerror = () => done(source.readyState === EventSource.CLOSED);
        })
    """
    talk = """
        new Promise(done => {
            const socket = new WebSocket("NODE/v1/ws".replace("http", "ws"));
            socket.onopen = () => done("open");
            socket.onclose = event => done(event.code);
        })
    """
    with chromium.page(site.url.replace("127.0.0.1", "localhost")) as page:
        for script, refusal in ((watch, True), (talk, 1006)):
            filled = script.replace("TOPIC", topic.name).replace("NODE", node.url)
            assert page.run(filled) == refusal
    assert not node.server.live.subscribers
