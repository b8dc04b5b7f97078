"""Network and server faults between a client and its node, for both clients."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from millstream.config.schema import HttpConfig
from millstream.errors import (
    LogOffline,
    MalformedAnswer,
    NodeRefused,
    NodeUnreachable,
    StaleReceipt,
    Unavailable,
    UnknownQueue,
    UnknownTopic,
)
from millstream.testing.broker import running_broker
from millstream.testing.clocks.manual_clock import ManualClock
from tests.clients.proxy import Limits

from .scripted import ScriptedNode, answer, hang_up, refusal

TOPIC = {"name": "t", "id": "1", "partition_count": 1, "durability": "fsync", "configs": {}}
PARTITION = {
    "partition": 0, "first_live_offset": 0, "eviction_floor": 0, "head": 0, "count": 0, "bytes": 0,
    "epoch": 0, "segments": 1, "deleted": 0, "reclaimable_bytes": 0, "gaps": [],
}  # fmt: skip
STATE = TOPIC | {
    "partitions": [PARTITION], "count": 0, "bytes": 0, "deleted": 0, "reclaimable_bytes": 0,
}  # fmt: skip
DESCRIBED = answer(200, STATE)
PRODUCER = answer(201, {"id": 7, "epoch": 0})
APPENDED = answer(201, {"offsets": [5], "partition": 0, "head": 6, "cost": {}})
JOBS = answer(200, {"jobs": [], "cost": {}})


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def patient(connect, clock):
    """Create clients whose pauses take no time and are recorded in `paused`."""

    def make(url, **options):
        return connect(url, clock=clock, pause=pause, jitter=lambda: 0.0, **options)

    def pause(seconds):
        make.paused.append(seconds)
        clock.advance(seconds)

    make.paused = []
    return make


# Connections that break.


CUTS = [
    (direction, size)
    for direction, sizes in {
        "to_client": (0, 1, 100, 200, 400, 600, 800, 900, 1000, 1100, 1200, 1300),
        "to_node": (0, 1, 50, 110, 150, 200, 250, 300, 350, 400, 450, 500, 550, 600, 700),
    }.items()
    for size in sizes
]


@pytest.mark.parametrize(("direction", "size"), CUTS)
def test_a_record_is_appended_once_wherever_connections_are_cut(
    connect, proxy, client, topic, direction, size
):
    proxy.limits += [Limits(**{direction: size + more}) for more in (0, 40, 300)]
    cut = connect(f"http://{proxy.bootstrap}", pause=lambda _: None)
    placed = [cut.append(topic, n, key="k") for n in range(3)]
    assert proxy.cut >= 1
    assert [(one.offset, one.value) for one in client.read(topic)] == [(0, 0), (1, 1), (2, 2)]
    assert [one.offset for one in placed] == [0, 1, 2]


@pytest.mark.parametrize("size", [0, 100, 300, 500, 900, 1500, 3000])
def test_a_reading_goes_on_where_it_was_cut(connect, proxy, client, topic, size):
    client.append_many(topic, list(range(60)))
    proxy.limits += [Limits(to_client=size + more) for more in (0, 700, 1500)]
    cut = connect(f"http://{proxy.bootstrap}", pause=lambda _: None)
    assert [one.value for one in cut.read(topic, limit=10)] == list(range(60))
    assert proxy.cut >= 1


def test_a_node_that_nobody_reaches_is_given_up_at_the_deadline(patient, clock):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    client = patient(url, config={"timeout_s": 10.0})
    with pytest.raises(NodeUnreachable, match="cannot connect") as caught:
        client.append("t", 1)
    assert not caught.value.may_be_done
    assert len(patient.paused) > 3
    assert 5 < clock.monotonic() < 10


def test_an_append_that_is_never_answered_says_that_it_may_be_done(patient):
    with ScriptedNode(DESCRIBED, PRODUCER, hang_up) as node:
        client = patient(node.url)
        with pytest.raises(NodeUnreachable, match="may have been executed") as caught:
            client.append("t", 1)
    assert caught.value.may_be_done
    appends = [one for one in node.seen if one.path.endswith("/records")]
    assert len(appends) > 3
    assert len({one.body for one in appends}) == 1, "repeated as it was"


def test_what_comes_behind_an_append_in_doubt_goes_under_another_producer(patient, clock):
    other = answer(201, {"id": 8, "epoch": 0})
    with ScriptedNode(DESCRIBED, PRODUCER, hang_up, other, APPENDED) as node:
        client = patient(node.url, config={"timeout_s": 1.0, "pause_s_min": 2.0})
        with pytest.raises(NodeUnreachable):
            client.append("t", 1)
        client.append("t", 2)
    [first, second] = [one.json for one in node.seen if one.path.endswith("/records")]
    assert (first["producer"]["id"], second["producer"]["id"]) == (7, 8)
    assert second["producer"]["sequence"] == 0


def test_a_node_that_forgot_the_producer_gets_the_record_under_another(patient):
    for code in ("unknown_producer", "out_of_order_sequence"):
        other = answer(201, {"id": 8, "epoch": 0})
        replies = (DESCRIBED, PRODUCER, APPENDED, refusal(409, code), other, APPENDED)
        with ScriptedNode(*replies) as node:
            client = patient(node.url)
            client.append("t", 1)
            assert client.append("t", 2).offset == 5
        *_, refused, _, repeated = node.seen
        assert refused.json["producer"] == {"id": 7, "epoch": 0, "sequence": 1}
        assert repeated.json["producer"] == {"id": 8, "epoch": 0, "sequence": 0}


def test_nobody_can_tell_where_the_node_forgot_the_producer_of_an_append_in_doubt(patient):
    with ScriptedNode(DESCRIBED, PRODUCER, hang_up, refusal(409, "unknown_producer")) as node:
        client = patient(node.url)
        with pytest.raises(
            NodeUnreachable, match="got no response, and the next attempt"
        ) as caught:
            client.append("t", 1)
    assert caught.value.may_be_done


def test_a_refusal_behind_an_attempt_in_doubt_does_not_take_the_doubt_away(patient):
    with (
        ScriptedNode(DESCRIBED, PRODUCER, hang_up, refusal(409, "log_full")) as node,
        pytest.raises(NodeUnreachable) as caught,
    ):
        patient(node.url).append("t", 1)
    assert caught.value.may_be_done


def test_a_topic_that_is_not_there_is_not_appended_to_twice(patient):
    """Its partitions are not known yet, so no producer id can identify the retry as a duplicate."""
    with (
        ScriptedNode(refusal(404, "unknown_topic"), hang_up) as node,
        pytest.raises(NodeUnreachable) as caught,
    ):
        patient(node.url).append("t", 1)
    assert caught.value.may_be_done
    assert len(node.seen) == 2


def test_a_claim_that_may_be_done_is_not_repeated(patient):
    with ScriptedNode(hang_up) as node, pytest.raises(NodeUnreachable) as caught:
        patient(node.url).queue("q").claim(5)
    assert caught.value.may_be_done
    assert len(node.seen) == 1


def test_a_claim_that_was_refused_for_now_is_repeated(patient):
    with ScriptedNode(refusal(503, "busy"), JOBS) as node:
        assert patient(node.url).queue("q").claim(5) == []
    assert len(node.seen) == 2


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "extend"])
def test_what_is_said_of_jobs_is_repeated(patient, verb):
    settled = {"acked": 1, "nacked": 1, "released": 1, "extended": 1}
    done = answer(200, {**settled, "deadline_ms": 1_000, "cost": {}})
    claimed = {
        "receipt": "r", "offset": 1, "partition": 0, "timestamp": 1, "key": None, "value": 1,
        "headers": {}, "deliveries": 1, "deadline_ms": 1_000,
    }  # fmt: skip
    jobs = answer(200, {"jobs": [claimed], "cost": {}})
    with ScriptedNode(jobs, hang_up, hang_up, done) as node:
        [job] = patient(node.url).queue("q").claim()
        getattr(job, verb)()
    assert [one.json["receipts"] for one in node.seen[1:]] == [["r"]] * 3


def test_a_stale_receipt_is_told_with_the_receipts(patient):
    wrong = refusal(409, "stale_receipt", {"stale": ["r"], "done": 2})
    with ScriptedNode(wrong) as node, pytest.raises(StaleReceipt) as caught:
        patient(node.url).queue("q").ack([FakeJob("r")])
    assert (caught.value.receipts, caught.value.done) == (("r",), 2)


class FakeJob:
    def __init__(self, receipt):
        self.receipt = receipt


@pytest.mark.parametrize(
    ("delete", "code", "error"),
    [
        (lambda client: client.topic("t").delete(), "unknown_topic", UnknownTopic),
        (lambda client: client.queue("q").delete(), "unknown_queue", UnknownQueue),
    ],
)
def test_what_is_gone_behind_an_attempt_in_doubt_was_deleted_by_it(patient, delete, code, error):
    with ScriptedNode(hang_up, refusal(404, code)) as node:
        delete(patient(node.url))
    with ScriptedNode(refusal(404, code)) as node, pytest.raises(error):
        delete(patient(node.url))


# Nodes that ask the client to retry later.


@pytest.mark.parametrize("status", [429, 503])
def test_a_node_that_says_when_to_come_again_is_asked_then(patient, status):
    busy = refusal(status, "busy", retry_after="7")
    with ScriptedNode(busy, busy, DESCRIBED) as node:
        patient(node.url).topic("t").describe()
    assert patient.paused == [7.0, 7.0]
    assert len(node.seen) == 3


def test_pauses_double(patient):
    busy = refusal(503, "busy")
    with ScriptedNode(*[busy] * 8, DESCRIBED) as node:
        patient(node.url).topic("t").describe()
    assert patient.paused == [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_node_that_is_busy_for_too_long_is_given_up_with_what_it_said(patient):
    with (
        ScriptedNode(refusal(503, "disk_full")) as node,
        pytest.raises(Unavailable, match="because of disk_full"),
    ):
        patient(node.url).topic("t").describe()


def test_a_pause_that_ends_behind_the_deadline_is_not_begun(patient):
    with (
        ScriptedNode(refusal(503, "busy", retry_after="31")) as node,
        pytest.raises(Unavailable),
    ):
        patient(node.url).topic("t").describe()
    assert patient.paused == []


def test_something_between_that_does_not_hear_from_the_node_leaves_a_doubt(patient):
    with (
        ScriptedNode(answer(502, b"<html>bad gateway</html>")) as node,
        pytest.raises(NodeRefused, match="bad_gateway") as caught,
    ):
        patient(node.url).queue("q").claim()
    assert len(node.seen) == 1
    assert caught.value.__notes__ == ["the request may have been executed"]


def test_a_node_that_is_at_fault_is_not_asked_again(patient):
    with (
        ScriptedNode(DESCRIBED, PRODUCER, refusal(500, "log_offline")) as node,
        pytest.raises(LogOffline) as caught,
    ):
        patient(node.url).append("t", 1)
    assert len(node.seen) == 3
    assert caught.value.__notes__ == ["the request may have been executed"]


# Invalid responses.


GARBAGE = {
    "no HTTP": (b"\x16\x03\x01 hello?\r\n\r\n" * 3, "is not HTTP"),
    "no length": (b"HTTP/1.1 200 OK\r\n\r\n{}", "has no length"),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        "is not HTTP",
    ),
    "a huge length": (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", "announces 9999"),
    "an endless head": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "head of more than 65536"),
    "two answers": (DESCRIBED + DESCRIBED, "has bytes after its end"),
    "another protocol": (
        b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        "switches to another protocol",
    ),
    "no JSON": (answer(200, b"<html>"), "response is b'<html>'"),
    "another message": (answer(200, {"n": 1}), "missing required field"),
    "not UTF-8": (answer(200, b'{"name": "\xff"}'), "response is"),
}


@pytest.mark.parametrize(("garbage", "says"), GARBAGE.values(), ids=GARBAGE)
def test_an_answer_that_is_none_is_reported(patient, garbage, says):
    with ScriptedNode(garbage) as node, pytest.raises(MalformedAnswer, match=says):
        patient(node.url).topic("t").describe()
    assert len(node.seen) == 1


def test_an_append_that_is_answered_by_garbage_leaves_a_doubt(patient):
    with ScriptedNode(DESCRIBED, PRODUCER, answer(201, b"nonsense"), PRODUCER, APPENDED) as node:
        client = patient(node.url)
        with pytest.raises(MalformedAnswer):
            client.append("t", 1)
    assert len(node.seen) == 3


def test_places_of_other_records_than_were_sent_are_not_believed(patient):
    wrong = answer(201, {"offsets": [5, 6], "partition": 0, "head": 6, "cost": {}})
    with (
        ScriptedNode(DESCRIBED, PRODUCER, wrong) as node,
        pytest.raises(MalformedAnswer, match="response has 2 offsets for 1 records"),
    ):
        patient(node.url).append("t", 1)


@pytest.mark.parametrize(
    "page",
    [
        {"records": [{"offset": 3}], "next": 4},
        {"records": [{"offset": 7}, {"offset": 7}], "next": 8},
        {"records": [{"offset": 7}], "next": 7},
        {"records": [], "next": 4},
    ],
    ids=repr,
)
def test_a_page_that_goes_back_is_not_believed(patient, page):
    record = {"timestamp": 1, "key": None, "value": 1, "headers": {}}
    rest = {"cursor": f"t:0:{page['next']}", "head": 9, "gaps": []}
    body = page | {"records": [record | one for one in page["records"]]} | rest
    with ScriptedNode(answer(200, body)) as node, pytest.raises(MalformedAnswer):
        list(patient(node.url).read("t", from_=5, partition=0))


def test_a_redirect_is_not_followed(patient):
    with ScriptedNode(answer(200, STATE)) as other:
        moved = answer(307, b"", location=f"{other.url}/v1/topics/t")
        with ScriptedNode(moved) as node, pytest.raises(NodeRefused, match="temporary_redirect"):
            patient(node.url).topic("t").describe()
    assert other.seen == []


def test_a_proxy_of_the_environment_is_not_used(patient, monkeypatch):
    with ScriptedNode(answer(200, STATE)) as other, ScriptedNode(DESCRIBED) as node:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, other.url)
        patient(node.url).topic("t").describe()
    assert other.seen == []


def test_an_answer_without_a_body_and_one_in_chunks_are_read(patient):
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    body = DESCRIBED.partition(b"\r\n\r\n")[2]
    chunked += b"%x\r\n%s\r\n5\r\n     \r\n0\r\n\r\n" % (len(body), body)
    go_on = b"HTTP/1.1 100 Continue\r\n\r\n"
    gone = b"HTTP/1.1 204 No Content\r\n\r\n"
    with ScriptedNode(go_on + chunked, gone, DESCRIBED) as node:
        client = patient(node.url)
        assert client.topic("t").describe().name == "t"
        client.topic("t").delete()
        assert client.topic("t").describe().name == "t"


# Slow responses. These tests wait in real time, so they are few and short.


def drip(connection):
    """Send a response head one byte at a time, each well within the timeout."""
    with contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
        while True:
            connection.sendall(b"y")
            time.sleep(0.01)


def test_an_answer_that_trickles_in_does_not_get_longer(connect):
    with ScriptedNode(drip) as node:
        client = connect(node.url, config={"answer_s_max": 0.15, "timeout_s": 0.25})
        with pytest.raises(NodeUnreachable, match="no response in time"):
            client.topic("t").describe()


def test_what_was_sent_to_a_node_that_does_not_answer_may_be_done(connect):
    with ScriptedNode(lambda connection: connection.recv(1)) as node:
        client = connect(node.url, config={"answer_s_max": 0.1, "timeout_s": 0.15})
        with pytest.raises(NodeUnreachable, match="no response in time") as caught:
            client.queue("q").claim()
    assert caught.value.may_be_done


def test_a_node_that_answers_before_it_read_all_is_heard(connect, tmp_path):
    """A node stops reading a body that is too large, and answers with an error."""
    with running_broker(tmp_path, http_server=HttpConfig(append_size_max=1024)) as broker:
        client = connect(broker.url)
        client.create_topic("t")
        with pytest.raises(NodeRefused, match="request_entity_too_large"):
            client.append("t", "x" * 10_000_000)
        assert client.append("t", "small").offset == 0
