"""Transactions, as clients see them: clients that get a new epoch each time, and older ones."""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

import pytest

from millstream.errors import ConcurrentTransaction, DiskFull
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from millstream.protocols.kafka.messages.producers import InitProducerIdRequest
from millstream.protocols.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    AddPartitionsToTxnRequestTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from millstream.records.batch import decode_header
from millstream.records.iterate import read_all
from tests.servers.kafka.client import RawClient, batch_of, produce_request

OLD, NEW = "keeps its epoch", "gets a new epoch"
_names = itertools.count()


class Versions(NamedTuple):
    """Request versions of a generation of clients."""

    produce: int
    add: int
    stage: int
    end: int


SPEAKS = {OLD: Versions(9, 3, 3, 3), NEW: Versions(12, 3, 5, 5)}


class Producer:
    """A transactional producer that sends only explicit requests."""

    def __init__(self, client: RawClient, kind: str = NEW, name: str | None = None) -> None:
        self.client = client
        self.kind = kind
        self.speaks = SPEAKS[kind]
        self.name = name or f"id-{next(_names)}"
        answer = client.call(
            InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        )
        assert answer.error_code == 0
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences: dict[tuple[str, int], int] = {}

    @property
    def fields(self):
        return {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
        }

    def add(self, topic: str, *partitions: int, version: int | None = None) -> list[int]:
        """Return the code of each partition."""
        answer = self.client.call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=(
                    AddPartitionsToTxnRequestTopic(name=topic, partitions=partitions),
                ),
            ),
            self.speaks.add if version is None else version,
        )
        (found,) = answer.results_by_topic_v3_and_below
        assert found.name == topic
        assert [part.partition_index for part in found.results_by_partition] == list(partitions)
        return [part.partition_error_code for part in found.results_by_partition]

    def send(self, topic: str, value: bytes, partition: int = 0, version: int | None = None) -> int:
        sequence = self._sequences.get((topic, partition), 0)
        batch = batch_of(
            value,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = produce_request(topic, batch, partition=partition, transactional_id=self.name)
        answer = self.client.call(request, self.speaks.produce if version is None else version)
        code = answer.responses[0].partition_responses[0].error_code
        if code == 0:
            self._sequences[topic, partition] = sequence + 1
        return code

    def write(self, topic: str, value: bytes, partition: int = 0) -> None:
        if self.kind == OLD:
            assert self.add(topic, partition) == [0]
        assert self.send(topic, value, partition) == 0

    def add_group(self, group: str, version: int = 3) -> int:
        return self.client.call(
            AddOffsetsToTxnRequest(group_id=group, **self.fields), version
        ).error_code

    def stage(
        self, topic: str, offset: int, *, group: str, partition: int = 0, version=None, **fields
    ) -> int:
        part = TxnOffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_metadata=fields.pop("metadata", None),
        )
        request = TxnOffsetCommitRequest(
            group_id=group,
            topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=(part,)),),
            **self.fields,
            **fields,
        )
        answer = self.client.call(request, self.speaks.stage if version is None else version)
        assert answer.topics[0].name == topic
        assert answer.topics[0].partitions[0].partition_index == partition
        return answer.topics[0].partitions[0].error_code

    def end(self, *, commit: bool, version: int | None = None):
        request = EndTxnRequest(committed=commit, **self.fields)
        return self.client.call(request, self.speaks.end if version is None else version)

    def finish(self, *, commit: bool) -> None:
        answer = self.end(commit=commit)
        assert answer.error_code == 0
        if self.kind == NEW:
            assert (answer.producer_id, answer.producer_epoch) == (self.id, self.epoch + 1)
            self.epoch = answer.producer_epoch
            self._sequences.clear()


def committed(client: RawClient, topic: str, partition: int = 0) -> list[bytes]:
    """Return the records that a read_committed consumer returns."""
    part = FetchRequestPartition(partition=partition, fetch_offset=0, partition_max_bytes=1_000_000)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        isolation_level=1,
        topics=(FetchRequestTopic(topic=topic, partitions=(part,)),),
    )
    found = client.call(request, 11).responses[0].partitions[0]
    assert found.error_code == 0
    data = bytes(found.records or b"")
    aborted = sorted(
        (entry.first_offset, entry.producer_id) for entry in found.aborted_transactions or ()
    )
    return list(visible(data, aborted))


def visible(data: bytes, aborted: list[tuple[int, int]]):
    active: set[int] = set()
    while data:
        header = decode_header(data)
        while aborted and aborted[0][0] <= header.last_offset:
            active.add(aborted.pop(0)[1])
        if header.is_control:
            active.discard(header.producer_id)
        elif header.producer_id not in active:
            yield from (record.value for record in read_all(data[: header.size]))
        data = data[header.size :]


def committed_offset(client: RawClient, group: str, topic: str, partition: int = 0) -> int:
    request = OffsetFetchRequest(
        group_id=group,
        topics=(OffsetFetchRequestTopic(name=topic, partition_indexes=(partition,)),),
    )
    answer = client.call(request, 5)
    assert answer.error_code == 0
    return answer.topics[0].partitions[0].committed_offset


@pytest.fixture(params=[OLD, NEW])
def kind(request):
    return request.param


# Records.


def test_records_are_seen_when_their_transaction_commits_and_not_before(client, topic, kind):
    producer = Producer(client, kind)
    producer.write(topic, b"a", 0)
    producer.write(topic, b"b", 1)
    assert committed(client, topic, 0) == committed(client, topic, 1) == []
    producer.finish(commit=True)
    assert committed(client, topic, 0) == [b"a"], "the answer means that it can be read"
    assert committed(client, topic, 1) == [b"b"]


def test_records_of_an_aborted_transaction_are_never_seen(client, topic, kind):
    producer = Producer(client, kind)
    for number in range(4):
        producer.write(topic, b"%d" % number)
        producer.finish(commit=number % 2 == 0)
    assert committed(client, topic) == [b"0", b"2"]


@pytest.mark.parametrize("value", [b"x", b"y"])
@pytest.mark.parametrize("commit", [False, True])
def test_a_sequence_of_an_ended_transaction_used_again_is_refused(client, topic, value, commit):
    producer = Producer(client, OLD)
    producer.write(topic, b"x")
    producer.finish(commit=commit)
    assert producer.add(topic, 0) == [0]
    producer._sequences.clear()
    code = producer.send(topic, value)
    assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "not an empty success"
    producer.finish(commit=False)
    producer._sequences[topic, 0] = 1
    producer.write(topic, b"z")
    producer.finish(commit=True)
    assert committed(client, topic) == [b"x"] * commit + [b"z"]


def test_an_end_sent_again_is_answered_as_before(client, topic, kind):
    producer = Producer(client, kind)
    producer.write(topic, b"a")
    first = producer.end(commit=True)
    assert producer.end(commit=True) == first
    assert producer.end(commit=False).error_code == ErrorCode.INVALID_TXN_STATE
    assert committed(client, topic) == [b"a"]


def test_a_late_end_does_not_touch_the_next_transaction(client, topic):
    producer = Producer(client, NEW)
    producer.write(topic, b"a")
    late = EndTxnRequest(committed=True, **producer.fields)
    producer.finish(commit=True)
    producer.write(topic, b"b")
    assert client.call(late, 5).error_code == ErrorCode.PRODUCER_FENCED
    assert committed(client, topic) == [b"a"]
    producer.finish(commit=False)
    assert committed(client, topic) == [b"a"]


def test_a_new_client_may_abort_what_it_could_not_begin(client):
    producer = Producer(client, NEW)
    producer.finish(commit=False)
    producer.finish(commit=False)
    assert producer.end(commit=True).error_code == ErrorCode.INVALID_TXN_STATE


def test_an_old_client_has_to_begin_before_it_ends(client):
    producer = Producer(client, OLD)
    for commit in (False, True):
        assert producer.end(commit=commit).error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_an_end_is_understood(client, topic, version):
    producer = Producer(client, OLD)
    producer.write(topic, b"a")
    answer = producer.end(commit=True, version=version)
    assert answer.error_code == 0
    new = (producer.id, producer.epoch + 1) if version >= 5 else (-1, -1)
    assert (answer.producer_id, answer.producer_epoch) == new
    assert committed(client, topic) == [b"a"]


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (9, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_a_batch_that_was_not_announced_is_refused(client, topic, version, code):
    producer = Producer(client, OLD)
    assert producer.send(topic, b"a", version=version) == code
    assert producer.add(topic, 0) == [0]
    assert producer.send(topic, b"a", version=version) == 0
    assert producer.send(topic, b"b", partition=1, version=version) == code


# Being overtaken.


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, ErrorCode.PRODUCER_FENCED),
        (3, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_an_overtaken_producer_is_told_so_in_words_that_it_knows(client, topic, version, code):
    old = Producer(client, OLD)
    Producer(client, OLD, old.name)
    assert old.add(topic, 0, 1, version=version) == [code, code]
    assert old.add_group("g", version=version) == code
    assert old.end(commit=True, version=version).error_code == code


@pytest.mark.parametrize("version", range(6))
def test_an_overtaken_producer_stages_no_offsets(client, topic, version):
    old = Producer(client)
    Producer(client, NEW, old.name)
    code = old.stage(topic, 1, group=old.name, version=version)
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed_offset(client, old.name, topic) == -1


def test_an_overtaken_producer_cannot_write_even_where_its_successor_never_did(client, topic, kind):
    old = Producer(client, kind)
    old.write(topic, b"a")
    new = Producer(client, kind, old.name)
    for partition in (0, 1):
        assert old.send(topic, b"b", partition) == ErrorCode.INVALID_PRODUCER_EPOCH
    new.write(topic, b"c")
    new.finish(commit=True)
    assert committed(client, topic) == [b"c"]


def test_an_overtaken_producer_cannot_write_where_its_successor_is_about_to(client, topic):
    old = Producer(client, OLD)
    new = Producer(client, OLD, old.name)
    assert new.add(topic, 0) == [0]
    assert old.send(topic, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert new.send(topic, b"a") == 0
    new.finish(commit=True)
    assert committed(client, topic) == [b"a"]


def test_a_producer_that_is_not_known_is_refused(client, topic):
    producer = Producer(client)
    producer.id += 1_000_000
    assert producer.add(topic, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert producer.send(topic, b"a") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer.end(commit=True).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer.name = "never seen"
    assert producer.add_group("g") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer.name = ""
    assert producer.end(commit=True).error_code == ErrorCode.INVALID_REQUEST


# Adding partitions.


@pytest.mark.parametrize("partition", [2, -1, 2**31 - 1])
def test_where_one_partition_does_not_exist_none_is_added(client, topic, partition):
    producer = Producer(client, OLD)
    assert producer.add(topic, 0, partition) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert producer.add("no such topic", 0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert described(client, producer.name).transaction_state == "Empty"


def test_a_partition_may_be_named_twice(client, topic):
    assert Producer(client, OLD).add(topic, 0, 0) == [0, 0]


def test_very_many_partitions_get_an_answer(client, topic):
    codes = Producer(client, OLD).add(topic, *range(100_000))
    assert set(codes[2:]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def ask_many(client, version, *asked):
    answer = client.call(AddPartitionsToTxnRequest(transactions=asked), version)
    assert answer.error_code == 0
    return {
        found.transactional_id: [
            part.partition_error_code
            for topic in found.topic_results
            for part in topic.results_by_partition
        ]
        for found in answer.results_by_transaction
    }


def asked_of(producer, topic, *partitions, verify=False):
    return AddPartitionsToTxnRequestTransaction(
        verify_only=verify,
        topics=(AddPartitionsToTxnRequestTopic(name=topic, partitions=partitions),),
        **producer.fields,
    )


@pytest.mark.parametrize(
    ("version", "missing"),
    [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_a_node_may_add_and_verify_many_at_once(client, topic, version, missing):
    one, other = Producer(client), Producer(client)
    codes = ask_many(client, version, asked_of(one, topic, 0), asked_of(other, topic, 1))
    assert codes == {one.name: [0], other.name: [0]}
    codes = ask_many(
        client,
        version,
        asked_of(one, topic, 0, 1, verify=True),
        asked_of(other, topic, 0, 1, verify=True),
    )
    assert codes == {one.name: [0, missing], other.name: [missing, 0]}
    Producer(client, NEW, one.name)
    codes = ask_many(client, version, asked_of(one, topic, 0, verify=True))
    assert codes == {one.name: [ErrorCode.PRODUCER_FENCED]}
    assert ask_many(client, version) == {}


# Offsets.


def test_offsets_are_committed_with_their_transaction(client, topic, kind):
    producer = Producer(client, kind)
    group = producer.name
    for offset, commit in ((5, True), (9, False), (7, True)):
        if kind == OLD:
            assert producer.add_group(group) == 0
        before = committed_offset(client, group, topic)
        assert producer.stage(topic, offset, group=group) == 0
        assert committed_offset(client, group, topic) == before
        producer.finish(commit=commit)
        assert committed_offset(client, group, topic) == (offset if commit else before)


def test_records_and_offsets_go_together(client, topic, kind):
    producer = Producer(client, kind)
    producer.write(topic, b"a")
    if kind == OLD:
        assert producer.add_group(producer.name) == 0
    assert producer.stage(topic, 3, group=producer.name) == 0
    producer.finish(commit=False)
    assert committed(client, topic) == []
    assert committed_offset(client, producer.name, topic) == -1


@pytest.mark.parametrize(
    ("version", "code"),
    [
        *((version, ErrorCode.INVALID_TXN_STATE) for version in range(4)),
        (4, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_offsets_of_a_group_that_was_not_announced_are_refused(client, topic, version, code):
    producer = Producer(client, OLD)
    assert producer.stage(topic, 1, group="g", version=version) == code
    assert producer.add_group("g") == 0
    assert producer.stage(topic, 1, group="g", version=version) == 0


def test_what_is_wrong_with_one_offset_does_not_concern_the_others(client, topic):
    producer = Producer(client)
    parts = [
        TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=4),
        TxnOffsetCommitRequestPartition(partition_index=2, committed_offset=4),
        TxnOffsetCommitRequestPartition(
            partition_index=1, committed_offset=4, committed_metadata="x" * 5000
        ),
    ]
    request = TxnOffsetCommitRequest(
        group_id=producer.name,
        topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=tuple(parts)),),
        **producer.fields,
    )
    (found,) = client.call(request, 5).topics
    assert [part.error_code for part in found.partitions] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]
    producer.finish(commit=True)
    assert committed_offset(client, producer.name, topic, 0) == 4
    assert committed_offset(client, producer.name, topic, 1) == -1


def test_a_member_that_is_not_in_the_group_stages_nothing(client, topic):
    producer = Producer(client)
    code = producer.stage(topic, 1, group=producer.name, member_id="who", generation_id=3)
    assert code == ErrorCode.ILLEGAL_GENERATION


def test_a_group_without_a_name_is_refused(client, topic):
    producer = Producer(client)
    assert producer.add_group("") == ErrorCode.INVALID_GROUP_ID
    assert producer.stage(topic, 1, group="") == ErrorCode.INVALID_GROUP_ID


# When something cannot be done for now.


async def _fail_full(*_, **__):
    raise DiskFull("no room")


async def _fail_busy(*_, **__):
    raise ConcurrentTransaction("still ending")


def test_a_client_comes_again_when_nothing_can_be_stored(client, topic, broker, monkeypatch):
    producer = Producer(client)
    monkeypatch.setattr(broker.server.broker.transactions.of("")._store, "save", _fail_full)
    assert producer.add(topic, 0) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert producer.add_group("g") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert producer.stage(topic, 1, group="g") == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_a_client_comes_again_while_the_transaction_before_is_ending(
    client, topic, broker, monkeypatch, version, code
):
    producer = Producer(client)
    monkeypatch.setattr(broker.server.broker.transactions.of("")._store, "settle", _fail_busy)
    assert producer.add(topic, 0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert producer.end(commit=True).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.stage(topic, 1, group="g", version=version) == code


# Describing and listing.


def described(client, name):
    (found,) = client.call(
        DescribeTransactionsRequest(transactional_ids=(name,))
    ).transaction_states
    assert found.transactional_id == name
    return found


def listed(client, *states, producers=(), open_longer_than_ms=-1, pattern=None):
    return client.call(
        ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=producers,
            duration_filter=open_longer_than_ms,
            transactional_id_pattern=pattern,
        )
    )


def listed_names(answer):
    assert (answer.error_code, answer.unknown_state_filters) == (0, ())
    return {found.transactional_id for found in answer.transaction_states}


def test_a_transaction_is_described_as_it_goes(client, topic):
    producer = Producer(client, OLD)
    found = described(client, producer.name)
    assert (found.error_code, found.transaction_state) == (0, "Empty")
    assert (found.producer_id, found.producer_epoch) == (producer.id, 0)
    assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (60_000, -1)
    producer.add(topic, 1, 0)
    found = described(client, producer.name)
    assert found.transaction_state == "Ongoing"
    assert found.transaction_start_time_ms > 0
    assert [(part.topic, part.partitions) for part in found.topics] == [(topic, (0, 1))]
    producer.finish(commit=True)
    found = described(client, producer.name)
    assert (found.transaction_state, found.topics) == ("CompleteCommit", ())


def test_what_is_not_known_cannot_be_described(client):
    assert described(client, "nobody").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert described(client, "").error_code == ErrorCode.INVALID_REQUEST
    assert client.call(DescribeTransactionsRequest(transactional_ids=())).transaction_states == ()


def test_transactions_are_listed_by_state_and_producer(client, topic):
    idle, busy = Producer(client, OLD), Producer(client, OLD)
    busy.add(topic, 0)

    def names(*states, producers=(idle.id, busy.id)):
        return listed_names(listed(client, *states, producers=producers))

    assert names() == {idle.name, busy.name}
    assert names("Ongoing") == {busy.name}
    assert names("Empty", "Ongoing") == {idle.name, busy.name}
    assert names("Dead", "PrepareEpochFence", "PrepareCommit") == set()
    assert names(producers=(busy.id,)) == {busy.name}
    assert {idle.name, busy.name} <= names(producers=())
    (found,) = listed(client, producers=(busy.id,)).transaction_states
    assert (found.producer_id, found.transaction_state) == (busy.id, "Ongoing")


def test_transactions_are_listed_that_have_been_open_for_long(client, topic):
    idle, busy = Producer(client, OLD), Producer(client, OLD)
    busy.add(topic, 0)
    both = (idle.id, busy.id)
    assert not listed_names(listed(client, producers=both, open_longer_than_ms=600_000))
    while not (names := listed_names(listed(client, producers=both, open_longer_than_ms=0))):
        pass  # Until the first millisecond of the transaction is over.
    assert names == {busy.name}  # What is not open has no age.


def test_transactions_are_listed_whose_whole_id_matches_a_pattern(client):
    first, second = Producer(client, OLD), Producer(client, OLD)
    both = (first.id, second.id)

    def names(pattern):
        return listed_names(listed(client, producers=both, pattern=pattern))

    assert names(None) == names("") == names(".*") == {first.name, second.name}
    assert names(re.escape(first.name)) == {first.name}
    assert names(re.escape(first.name[:-1])) == set()


def test_an_invalid_pattern_lists_nothing_and_is_named_as_such(client):
    Producer(client, OLD)
    answer = listed(client, pattern="(")
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.transaction_states == ()


def test_states_that_nobody_knows_are_named(client):
    producer = Producer(client)
    answer = listed(client, "ongoing", "Lost", producers=(producer.id,))
    assert answer.unknown_state_filters == ("Lost", "ongoing")
    assert answer.transaction_states == ()
