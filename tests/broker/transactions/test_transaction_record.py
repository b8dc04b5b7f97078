"""Encoding of transactional id state: it round-trips."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.transactions.transaction import (
    TransactionMetadata,
    TransactionProducer,
    TransactionState,
)
from millstream.broker.transactions.transaction_record import decode, encode, encode_key
from millstream.errors import CorruptData, UnknownFormat
from millstream.records.topic_partition import TopicPartition

PRODUCERS = st.builds(TransactionProducer, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))
TRANSACTIONS = st.builds(
    TransactionMetadata,
    transactional_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    producer=PRODUCERS,
    timeout_ms=st.integers(1, 2**31 - 1),
    update_ms=st.integers(0, 2**62),
    state=st.sampled_from(TransactionState),
    previous=st.none() | PRODUCERS,
    next_producer_id=st.none() | st.integers(0, 2**63 - 1),
    partitions=st.frozensets(
        st.builds(TopicPartition, st.text("ab.", min_size=1), st.integers(0, 99))
    ),
    groups=st.frozensets(st.text(st.characters(exclude_categories=["Cs"]))),
    start_ms=st.integers(-1, 2**62),
    begun_ms=st.integers(-1, 2**62),
)
A_TRANSACTION = TransactionMetadata(
    transactional_id="orders", producer=TransactionProducer(4001, 3), timeout_ms=60_000, update_ms=5
)


@given(TRANSACTIONS)
def test_what_is_kept_reads_back_as_it_was(transaction: TransactionMetadata) -> None:
    assert decode(encode_key(transaction.transactional_id), encode(transaction)) == transaction


def test_what_older_releases_wrote_is_read() -> None:
    kept = (
        b'{"version":1,"state":"PrepareCommit","producer":[4001,32767],"previous":[4001,32766],'
        b'"next_producer_id":4002,"timeout_ms":60000,"update_ms":5,"start_ms":4,'
        b'"partitions":{"a":[0,2],"b":[1]},"groups":["g"]}'
    )
    transaction = decode(b"orders", kept)
    assert transaction == TransactionMetadata(
        transactional_id="orders",
        producer=TransactionProducer(4001, 32767),
        previous=TransactionProducer(4001, 32766),
        next_producer_id=4002,
        timeout_ms=60_000,
        update_ms=5,
        start_ms=4,
        state=TransactionState.PREPARE_COMMIT,
        partitions=frozenset(
            {
                TopicPartition("a", 0),
                TopicPartition("a", 2),
                TopicPartition("b", 1),
            }
        ),
        groups=frozenset({"g"}),
    )
    assert encode(replace(transaction, begun_ms=7)) == kept.replace(
        b'"version":1', b'"version":2'
    ).replace(b'"start_ms":4', b'"start_ms":4,"begun_ms":7')


def test_what_a_newer_release_wrote_is_refused() -> None:
    newer = encode(A_TRANSACTION).replace(b'"version":2', b'"version":3')
    with pytest.raises(
        UnknownFormat, match="'orders' has version 3, which must be between 1 and 2"
    ):
        decode(b"orders", newer)


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value[:-1],
        lambda value: b"",
        lambda value: b"[]",
        lambda value: value.replace(b'"Empty"', b'"Emptied"'),
        lambda value: value.replace(b"[4001,3]", b"[4001]"),
        lambda value: value.replace(b'"groups"', b'"bands"'),
    ],
)
def test_damage_is_reported_with_the_id(damage) -> None:
    with pytest.raises(CorruptData, match="orders"):
        decode(b"orders", damage(encode(A_TRANSACTION)))


def test_a_key_that_is_no_text_is_damage() -> None:
    with pytest.raises(CorruptData):
        decode(b"\xff", encode(A_TRANSACTION))
