"""Following topics live, across broken connections and node restarts."""

from __future__ import annotations

import itertools
import json
import socket
import threading

import pytest

from millstream.clients.http.core.append.new_record import NewRecord
from millstream.errors import InvalidRequest, MalformedAnswer, NodeUnreachable, UnknownTopic
from millstream.testing.clocks.manual_clock import ManualClock
from tests.clients.proxy import Limits
from tests.crash.broker_process import BrokerProcess
from tests.servers.http.calls import ask

from .scripted import ScriptedNode, answer, refusal

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def take(follower, count):
    return list(itertools.islice(follower, count))


def values(items):
    return [item.value for item in items]


def test_a_follower_gets_what_was_there_and_what_comes(client, topic):
    client.append_many(topic, [1, 2])
    with client.follow(topic, from_="earliest") as follower:
        assert values(take(follower, 2)) == [1, 2]
        client.append(topic, 3)
        assert values(take(follower, 1)) == [3]


def test_latest_begins_where_the_topics_stand_when_it_is_asked_for(client, name):
    for one in ("a", "b"):
        client.create_topic(f"{name}-{one}", partitions=2)
        client.append_many(f"{name}-{one}", ["old"] * 3)
    with client.follow(f"{name}-a", f"{name}-b") as follower:
        client.append(f"{name}-b", "new", partition=1)
        client.append(f"{name}-a", "new", partition=0)
        found = take(follower, 2)
    assert {(one.topic, one.partition, one.value) for one in found} == {
        (f"{name}-a", 0, "new"),
        (f"{name}-b", 1, "new"),
    }


def test_a_follower_that_was_left_in_the_middle_goes_on_from_its_cursor(
    connect, broker, client, name
):
    hasty = connect(broker.url, config={"silence_s_max": 5.0, "timeout_s": 0.01})
    client.create_topic(name, partitions=2)
    for partition, numbers in enumerate((range(50), range(50, 100))):
        ends = [*numbers, "end"]
        client.append_many(name, [NewRecord(value, partition=partition) for value in ends])
    found = []
    cursor = "earliest"
    while found.count("end") < 2:
        with hasty.follow(name, from_=cursor) as follower:
            for taken, item in enumerate(follower, start=1):
                found.append(item.value)
                if taken == 9 or found.count("end") == 2:
                    break
            cursor = follower.cursor
    assert sorted(one for one in found if one != "end") == list(range(100))


def test_a_follower_is_told_of_a_gap(broker, client, name):
    client.create_topic(name, configs={"segment.bytes": 1_024, "retention.bytes": 1_024})
    for n in range(30):
        client.append(name, "x" * 200, key=str(n))
    broker.run(broker.server.broker.store.maintenance.run_once(is_forced=True))
    with client.follow(name, from_=f"{name}:0:3") as follower:
        gap, record = take(follower, 2)
    assert (gap.topic, gap.partition, gap.from_offset, gap.reason) == (name, 0, 3, "bytes")
    assert record.offset == gap.to_offset + 1


def test_a_follower_is_spared_what_a_node_wrote(client, broker, topic):
    with client.follow(topic, exclude_node="a") as follower:
        body = b'{"records":[{"value":1,"node":"a"},{"value":2,"node":"b"}]}'
        ask(broker.url, "POST", f"/v1/topics/{topic}/records", body)
        assert values(take(follower, 1)) == [2]


def test_a_topic_that_is_deleted_ends_its_followers(client, topic):
    client.append(topic, 1)
    with client.follow(topic, from_="earliest") as follower:
        take(follower, 1)
        client.topic(topic).delete()
        with pytest.raises(UnknownTopic, match=topic):
            next(follower)


def test_a_topic_that_is_not_there_cannot_be_followed(client, name):
    with pytest.raises(UnknownTopic), client.follow(name) as follower:
        next(follower)
    with pytest.raises(UnknownTopic), client.follow(name, from_="earliest") as follower:
        next(follower)


@pytest.mark.parametrize(("topics", "from_"), [((), "latest"), (("t",), "nonsense")])
def test_what_cannot_be_followed_is_refused(client, topics, from_):
    with pytest.raises(InvalidRequest):
        client.follow(*topics, from_=from_)


def test_a_follower_that_waits_can_be_closed(client, topic):
    follower = client.follow(topic)
    with follower:
        client.append(topic, 1)
        take(follower, 1)
        ended = []
        waiting = threading.Thread(target=lambda: ended.append(list(follower)))
        waiting.start()
        follower.close()
        waiting.join(30)
    assert ended == [[]]


# Connections that break.


@pytest.mark.parametrize("size", [0, 100, 250, 400, 700, 1_000, 2_000])
def test_nothing_is_lost_and_nothing_comes_twice_over_connections_that_are_cut(
    connect, proxy, client, topic, size
):
    client.append_many(topic, list(range(20)))
    proxy.limits += [Limits(to_client=size + more) for more in (0, 30, 300, 900, 2_000)]
    cut = connect(f"http://{proxy.bootstrap}", pause=lambda _: None)
    with cut.follow(topic, from_="earliest") as follower:
        found = values(take(follower, 20))
        for n in range(20, 40):
            client.append(topic, n)
            if n % 7 == 0:
                proxy.cut_all()
            found += values(take(follower, 1))
    assert found == list(range(40))


def test_latest_loses_nothing_though_the_first_connection_breaks(connect, proxy, client, topic):
    cut = connect(f"http://{proxy.bootstrap}", pause=lambda _: None)
    client.append(topic, "old")
    with cut.follow(topic) as follower:
        client.append(topic, "new")
        proxy.cut_all()
        assert values(take(follower, 1)) == ["new"]


def test_a_follower_goes_on_when_its_node_was_killed_and_comes_back(connect, tmp_path):
    """Takes a second or two: a real process starts three times."""
    node = BrokerProcess(tmp_path)
    try:
        node.start()
        node.wait_until_ready()
        client = connect(f"http://{node.http}")
        client.create_topic("t")
        with client.follow("t") as follower:
            found = []
            for ending in (node.kill, node.stop, None):
                for _ in range(5):
                    client.append("t", len(found))
                    found += values(take(follower, 1))
                if ending is not None:
                    ending()
                    node.start()
                    node.wait_until_ready()
        assert found == list(range(15))
    finally:
        node.close()


# Invalid streams.


def event(kind, data, cursor=None):
    lines = [f"event: {kind}", *([f"id: {cursor}"] if cursor else []), f"data: {json.dumps(data)}"]
    text = ("\n".join(lines) + "\n\n").encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


def records(*offsets, cursor=None):
    record = {"timestamp": 1, "key": None, "value": 1, "headers": {}}
    data = {
        "topic": "t", "partition": 0, "records": [record | {"offset": one} for one in offsets],
        "next": offsets[-1] + 1, "head": 99,
    }  # fmt: skip
    return event("records", data, cursor or f"t:0:{offsets[-1] + 1}")


@pytest.fixture
def patient(connect):
    clock = ManualClock()
    return lambda url, **options: connect(url, clock=clock, pause=clock.advance, **options)


def test_what_comes_again_is_passed_over(patient):
    again = HEAD + records(0, 1) + records(1, 2) + records(2) + records(3, cursor="t:0:4")
    with ScriptedNode(again) as node, patient(node.url).follow("t", from_="t:0:1") as follower:
        assert [one.offset for one in take(follower, 3)] == [1, 2, 3]
        assert follower.cursor == "t:0:4"


def test_the_cursor_goes_along_when_a_connection_is_made_anew(patient):
    first = HEAD + event("heartbeat", {}, "t:0:0,t:1:5") + records(0, 1) + b"0\r\n\r\n"
    with (
        ScriptedNode(first, HEAD + records(2)) as node,
        patient(node.url).follow("t", from_="earliest") as follower,
    ):
        assert [one.offset for one in take(follower, 3)] == [0, 1, 2]
    assert [one.headers.get("last-event-id") for one in node.seen] == [None, "t:0:2,t:1:5"]
    assert node.seen[0].path == "/v1/events?topic=t&from=earliest"


def test_a_node_that_is_stopping_is_left_and_asked_again(patient):
    stopping = HEAD + records(0) + event("end", {"topic": "t", "reason": "stopping"})
    busy = refusal(503, "stopping", retry_after="1")
    with (
        ScriptedNode(stopping, busy, busy, HEAD + records(1)) as node,
        patient(node.url).follow("t", from_="earliest") as follower,
    ):
        assert [one.offset for one in take(follower, 2)] == [0, 1]
    assert len(node.seen) == 4


def test_who_gets_no_connection_for_too_long_is_told(patient):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(NodeUnreachable, match="cannot connect"):
        next(patient(url).follow("t", from_="earliest"))


WRONG = {
    "an endless line": (HEAD + b"5000\r\n" + b"x" * 0x5000, "at most 10000 bytes"),
    "an endless event": (HEAD + b"9\r\ndata: xx\n\r\n" * 5_000, "at most 10000 bytes"),
    "no stream": (answer(200, {}, content_type="application/json"), "media type"),
    "no JSON": (HEAD + b"18\r\nevent: records\ndata: {\n\n\r\n", "response is"),
    "no cursor": (HEAD + records(1, cursor="nonsense"), "event id: "),
}


@pytest.mark.parametrize(("stream", "says"), WRONG.values(), ids=WRONG)
def test_a_stream_that_is_none_is_reported(patient, stream, says):
    with ScriptedNode(stream) as node:
        client = patient(node.url, config={"event_size_max": 10_000})
        with (
            client.follow("t", from_="earliest") as follower,
            pytest.raises(MalformedAnswer, match=says),
        ):
            list(follower)


def test_a_node_that_says_nothing_is_given_up(connect):
    """Waits a tenth of a second in real time."""
    with ScriptedNode(HEAD + records(0)) as node:
        client = connect(node.url, config={"silence_s_max": 0.1, "timeout_s": 0.01})
        with client.follow("t", from_="earliest") as follower:
            take(follower, 1)
            with pytest.raises(NodeUnreachable):
                next(follower)
