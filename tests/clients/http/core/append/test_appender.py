"""The append state machine, step by step, with the test as its network."""

from __future__ import annotations

import json

import pytest

from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.append.appender import Appender
from millstream.clients.http.core.append.partition_appends import (
    SEQUENCE_MAX,
    PartitionAppends,
    RecordGroup,
)
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.node_addresses import NodeAddresses
from millstream.clients.http.core.requests import HttpProducerId
from millstream.clients.http.core.response import ClientResponse
from millstream.clients.http.core.steps import ClientContext, SendRequest
from millstream.errors import (
    DeadlineExceeded,
    InvalidRecord,
    LogFull,
    NodeUnreachable,
    OutOfOrderSequence,
)
from millstream.testing.clocks.manual_clock import ManualClock


class Network:
    """Answers requests as a node with one partition and producer state."""

    def __init__(self, clock):
        self.clock = clock
        self.log = []
        self.producers = {}
        self.given = 0
        self.requests = []
        self.faults = []
        """One entry per append: whether the connection fails before or after the append."""

    def run(self, steps):
        done = None
        error = None
        while True:
            try:
                step = steps.throw(error) if error else steps.send(done)
            except StopIteration as end:
                return end.value
            done = error = None
            if not isinstance(step, SendRequest):
                self.clock.advance(step.seconds)
                continue
            self.requests.append(step.request)
            try:
                done = self.answer(step.request)
            except NodeUnreachable as lost:
                error = lost

    def answer(self, request):
        if request.path == "/v1/producers":
            self.given += 1
            return ClientResponse(201, {}, json.dumps({"id": self.given, "epoch": 0}).encode())
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise NodeUnreachable("node", "cut", may_be_done=True)
        answer = self.append(json.loads(request.body))
        if fault == "after":
            raise NodeUnreachable("node", "cut", may_be_done=True)
        return answer

    def append(self, body):
        values = [record["value"] for record in body["records"]]
        if "bad" in values:
            return refuse(400, "invalid_record")
        if "full" in values:
            return refuse(409, "log_full")
        stamp = body["producer"]
        expected, last = self.producers.get(stamp["id"], (0, None))
        if last is not None and stamp["sequence"] == last[0]:
            return placed(last[1])
        if stamp["sequence"] != expected:
            return refuse(409, "out_of_order_sequence")
        offsets = list(range(len(self.log), len(self.log) + len(values)))
        self.log += values
        self.producers[stamp["id"]] = (expected + len(values), (expected, offsets))
        return placed(offsets)


def placed(offsets):
    body = {"offsets": offsets, "partition": 0, "head": 0, "cost": {}}
    return ClientResponse(201, {}, json.dumps(body).encode())


def refuse(status, code):
    error = {"code": code, "message": code, "detail": None}
    return ClientResponse(status, {}, json.dumps({"error": error}).encode())


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def network(clock):
    return Network(clock)


@pytest.fixture
def appender(clock):
    context = ClientContext(NodeAddresses([NodeUrl("node", 1)]), ClientConfig(), clock, lambda: 0.0)
    return Appender(context)


@pytest.fixture
def deliver(appender, network):
    """Deliver groups to one partition; return the offsets or the error of each."""

    def deliver(*groups):
        appends = appender.partition_appends("t", 0)
        made = [
            appender.record_group([json.dumps({"value": one}).encode() for one in values], None)
            for values in groups
        ]
        outcomes = network.run(appender.deliver(appends, made))
        return [
            [one.offset for one in outcome] if isinstance(outcome, list) else type(outcome)
            for outcome in outcomes
        ]

    return deliver


def test_groups_share_a_request(deliver, network):
    assert deliver(["a"], ["b", "c"], ["d"]) == [[0], [1, 2], [3]]
    assert network.log == ["a", "b", "c", "d"]
    assert len(network.requests) == 2, "the producer, and one append"


def test_one_id_serves_all_requests_of_a_lane(deliver, network):
    for n in range(5):
        deliver([n])
    assert network.given == 1
    assert network.log == list(range(5))


@pytest.mark.parametrize("faults", [["before"], ["after"], ["before", "after"], ["after"] * 4])
def test_a_request_that_was_cut_is_appended_once(deliver, network, faults):
    deliver(["first"])
    network.faults += faults
    assert deliver(["a"], ["b"]) == [[1], [2]]
    assert deliver(["c"]) == [[3]]
    assert network.log == ["first", "a", "b", "c"]
    assert network.given == 1


def test_one_bad_record_does_not_harm_those_it_shares_a_request_with(deliver, network):
    assert deliver(["a"], ["b"], ["bad", "x"], ["c"], ["d"]) == [
        [0], [1], InvalidRecord, [2], [3],
    ]  # fmt: skip
    assert network.log == ["a", "b", "c", "d"]


def test_what_is_wrong_with_the_partition_is_told_to_all_at_once(deliver, network):
    assert deliver(["a"], ["full"], ["b"]) == [LogFull] * 3
    assert network.log == []
    assert len(network.requests) == 2


def test_a_refusal_spends_no_sequence(deliver, network):
    deliver(["a"])
    assert deliver(["bad"]) == [InvalidRecord]
    assert deliver(["b"]) == [[1]]
    assert network.given == 1


def test_a_producer_that_the_node_forgot_is_followed_by_a_new_one(deliver, network):
    deliver(["a"])
    network.producers.clear()
    assert deliver(["b"], ["c"]) == [[1], [2]]
    assert network.given == 2


def test_a_new_producer_that_is_refused_too_is_the_end(deliver, network, monkeypatch):
    monkeypatch.setattr(network, "append", lambda _: refuse(409, "out_of_order_sequence"))
    assert deliver(["a"]) == [OutOfOrderSequence]
    assert len(network.requests) == 2


def test_a_doubt_that_the_node_cannot_take_away_is_told_to_all(deliver, network):
    deliver(["a"])
    network.faults += ["after"]
    original = network.append

    def forget_after(body):
        answer = original(body)
        network.producers.clear()
        return answer

    network.append = forget_after
    assert deliver(["b"], ["c"]) == [NodeUnreachable] * 2
    assert network.log == ["a", "b", "c"], "they may be there, and are"
    network.append = original
    assert deliver(["d"]) == [[3]]
    assert network.given == 2


def test_a_group_that_waited_too_long_is_not_sent(appender, network, clock):
    appends = appender.partition_appends("t", 0)
    late = appender.record_group([b'{"value":"late"}'], None)
    clock.advance(31)
    fresh = appender.record_group([b'{"value":"fresh"}'], None)
    outcomes = network.run(appender.deliver(appends, [late, fresh]))
    assert isinstance(outcomes[0], DeadlineExceeded)
    assert network.log == ["fresh"]


def test_a_call_that_is_called_off_leaves_no_sequence_behind(appender, network):
    appends = appender.partition_appends("t", 0)
    network.run(appender.deliver(appends, [appender.record_group([b'{"value":1}'], None)]))
    steps = appender.deliver(appends, [appender.record_group([b'{"value":2}'], None)])
    steps.send(None)
    steps.close()
    assert appends.producer is None
    network.run(appender.deliver(appends, [appender.record_group([b'{"value":3}'], None)]))
    assert network.given == 2


# Appends to one partition.


def appends_with(*sizes, **config):
    appends = PartitionAppends("t", 0, ClientConfig(**config))
    for size in sizes:
        appends.waiting.append(RecordGroup([b"x" * size], deadline=0.0, ticket=size))
    return appends


def taken(appends):
    found = []
    while groups := appends.take():
        found.append([group.ticket for group in groups])
    return found


def test_a_request_takes_groups_up_to_its_size_and_one_at_least():
    assert taken(appends_with(40, 40, 40, 200, 10, gather_bytes_max=100)) == [
        [40, 40],
        [40],
        [200],
        [10],
    ]


def test_a_request_takes_records_up_to_their_number():
    assert taken(appends_with(1, 1, 1, 1, 1, gather_records_max=2)) == [[1, 1], [1, 1], [1]]


def test_an_id_is_never_taken_again_for_a_partition_where_it_was_retired():
    appends = appends_with()
    appends.start_producer(HttpProducerId(7, 0))
    appends.retire_producer()
    with pytest.raises(AssertionError):
        appends.start_producer(HttpProducerId(7, 0))


def test_sequences_end_before_their_numbers_do():
    appends = appends_with()
    appends.start_producer(HttpProducerId(7, 0))
    appends.advance(SEQUENCE_MAX // 2)
    assert appends.producer is not None
    appends.advance(1)
    assert appends.producer is None
