"""Bytes of messages between peers, written by hand, field by field."""

from __future__ import annotations

import uuid

import pytest

from millstream.protocols.kafka.codec.message import decode, encode
from millstream.protocols.peer.apis import PEER_APIS
from millstream.protocols.peer.messages.append_batch import (
    AppendBatchRequest,
    AppendBatchResponse,
)
from millstream.protocols.peer.messages.delete_before import (
    DeleteBeforeRequest,
    DeleteBeforeResponse,
)
from millstream.protocols.peer.messages.fetch_batches import (
    FetchBatchesAbortedTransaction,
    FetchBatchesRequest,
    FetchBatchesResponse,
)
from millstream.protocols.peer.messages.find_offset import FindOffsetRequest, FindOffsetResponse
from millstream.protocols.peer.messages.forward import (
    ForwardHeader,
    ForwardRequest,
    ForwardResponse,
)
from millstream.protocols.peer.messages.peer_fetch import (
    PeerFetchDiverging,
    PeerFetchForgottenPartition,
    PeerFetchRequest,
    PeerFetchRequestPartition,
    PeerFetchResponse,
    PeerFetchResponsePartition,
)
from millstream.protocols.peer.messages.peer_transactions import (
    CommitTransactionOffsetsRequest,
    CommitTransactionOffsetsResponse,
    CommitTransactionOffsetsResponseGroup,
    TransactionPartition,
    TransactionPartitionResult,
    VerifyTransactionRequest,
    VerifyTransactionResponse,
    WriteMarkersRequest,
    WriteMarkersRequestMarker,
    WriteMarkersResponse,
    WriteMarkersResponseMarker,
)
from millstream.protocols.peer.messages.ping import PingRequest, PingResponse
from millstream.protocols.peer.messages.segments import (
    SegmentChunkRequest,
    SegmentChunkResponse,
    SegmentManifestEntry,
    SegmentManifestEpoch,
    SegmentManifestRequest,
    SegmentManifestResponse,
)

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
ID_HEX = "00112233445566778899aabbccddeeff"
PARTITION = f"{ID_HEX} 00000003"
NONE = "ffffffffffffffff"

GOLDEN = {
    "ping": (PingRequest(nonce=7), "0000000000000007 00"),
    "pong": (PingResponse(nonce=7), "0000000000000007 00"),
    "fetch": (
        PeerFetchRequest(
            session_id=1,
            session_epoch=2,
            broker_epoch=3,
            wait_ms_max=500,
            bytes_min=1,
            bytes_max=0x100000,
            partitions=(
                PeerFetchRequestPartition(
                    topic_id=ID,
                    index=3,
                    leader_epoch=4,
                    fetch_offset=5,
                    last_fetched_epoch=-1,
                    log_start=6,
                    bytes_max=7,
                ),
            ),
            forgotten=(PeerFetchForgottenPartition(topic_id=ID, index=3),),
        ),
        "00000001 00000002 0000000000000003"  # session, its epoch, broker epoch
        "000001f4 00000001 00100000"  # wait, bytes at least and at most
        f"02 {PARTITION} 00000004"  # one partition, leader epoch
        "0000000000000005 ffffffff 0000000000000006 00000007 00"
        f"02 {PARTITION} 00  00",  # one forgotten partition, tags
    ),
    "a slice of a segment": (
        PeerFetchResponse(
            session_id=1,
            partitions=(
                PeerFetchResponsePartition(
                    topic_id=ID,
                    index=3,
                    leader_epoch=4,
                    segment_base=5,
                    position=6,
                    is_last_of_segment=True,
                    seal=b"s",
                    high_watermark=7,
                    log_start=8,
                    eviction_floor=9,
                    eviction_reason="age",
                    batches=b"abc",
                ),
            ),
        ),
        "0000 00000001"
        f"02 {PARTITION} 0000 00000004 ff"  # no error, leader epoch, not diverging
        "0000000000000005 0000000000000006 01 02 73"  # base, position, last, seal
        "0000000000000007 0000000000000008 0000000000000009 04 616765"
        "04 616263 00  00",  # batches, tags
    ),
    "a follower that diverged": (
        PeerFetchResponse(
            partitions=(
                PeerFetchResponsePartition(
                    topic_id=ID, index=3, diverging=PeerFetchDiverging(epoch=1, end_offset=2)
                ),
            ),
        ),
        "0000 00000000"
        f"02 {PARTITION} 0000 ffffffff 01 00000001 0000000000000002 00"
        f"{NONE} {NONE} 00 00"
        f"{NONE} {NONE} {NONE} 00"
        "00 00  00",
    ),
    "segments to list": (
        SegmentManifestRequest(topic_id=ID, index=3, leader_epoch=4, from_offset=5, count_max=6),
        f"{PARTITION} 00000004 0000000000000005 00000006 00",
    ),
    "a manifest": (
        SegmentManifestResponse(
            leader_epoch=4,
            log_start=1,
            eviction_floor=2,
            high_watermark=3,
            epochs=(SegmentManifestEpoch(epoch=1, start_offset=0),),
            segments=(
                SegmentManifestEntry(
                    base=0,
                    generation=2,
                    size=99,
                    next_offset=10,
                    digest=b"dd",
                    leader_epoch=7,
                    created_age_ms=8,
                    sealed_age_ms=9,
                ),
            ),
            has_more=True,
            sealed_end=10,
            sealed_bytes=99,
        ),
        "0000 00000004 0000000000000001 0000000000000002 00 0000000000000003"
        "02 00000001 0000000000000000 00"  # one epoch
        "02 0000000000000000 00000002 0000000000000063 000000000000000a 03 6464"
        "00000007 0000000000000008 0000000000000009 00"
        "01 000000000000000a 0000000000000063 00",
    ),
    "a chunk to read": (
        SegmentChunkRequest(
            topic_id=ID, index=3, leader_epoch=4, base=5, generation=6, position=7, bytes_max=8
        ),
        f"{PARTITION} 00000004 0000000000000005 00000006 0000000000000007 00000008 00",
    ),
    "a chunk": (SegmentChunkResponse(size=9, chunk=b"xy"), "0000 0000000000000009 03 7879 00"),
    "a forwarded request": (
        ForwardRequest(
            method="PUT",
            target=b"/v1",
            client_address="::1",
            principal="me",
            headers=(ForwardHeader(name=b"a", value=b"b"),),
            body=b"{}",
        ),
        "01 04 505554 04 2f7631 05 68747470"  # hops, method, target, scheme
        "04 3a3a31 03 6d65"
        "02 02 61 02 62 00"  # one header
        "03 7b7d 00",
    ),
    "a forwarded response": (
        ForwardResponse(status=204, headers=(), body=None),
        "00cc 01"
        "00 00"  # no long poll, not resumable
        "0000 01 ffffffff"  # no refusal
        "00 00",
    ),
    "a batch for a leader": (
        AppendBatchRequest(topic_id=ID, index=3, leader_epoch=4, batch=b"{}"),
        f"{PARTITION} 00000004 ffffffffffffffff 03 7b7d 00",
    ),
    "a batch of a client": (
        AppendBatchRequest(
            topic_id=ID, index=3, principal="me", token_id="t", client_address="::1", batch=b"{}"
        ),
        f"{PARTITION} ffffffff ffffffffffffffff 03 7b7d"
        "03 00 03 03 6d65 01 02 02 74 02 04 04 3a3a31",  # three tags: principal, token, address
    ),
    "a batch that was appended": (
        AppendBatchResponse(base_offset=1, last_offset=2, high_watermark=3, commit_ms=1.0),
        "0000 01 01 01 ffffffff ffffffff 01"  # no error
        "0000000000000001 0000000000000002 ffffffffffffffff 0000000000000003"
        "3ff0000000000000 0000000000000000 0000000000000000 00",
    ),
    "a batch that was refused": (
        AppendBatchResponse(
            error_code=6, error_name="not_leader", error_message="m", leader=2, leader_epoch=5
        ),
        "0006 0b 6e6f745f6c6561646572 02 6d 01 00000002 00000005 01"
        "ffffffffffffffff ffffffffffffffff ffffffffffffffff ffffffffffffffff"
        "0000000000000000 0000000000000000 0000000000000000 00",
    ),
    "batches to read": (
        FetchBatchesRequest(topic_id=ID, index=3, offset=5, wait_ms_max=6, bytes_max=7),
        f"{PARTITION} ffffffff 0000000000000005 00000007 01 00000006"
        "ffffffffffffffff ffffffffffffffff ffffffffffffffff 00",
    ),
    "time to find": (
        FindOffsetRequest(topic_id=ID, index=3, timestamp_ms=5),
        f"{PARTITION} 0000000000000005 00",
    ),
    "offset that was found": (FindOffsetResponse(offset=6), "0000000000000006 00"),
    "records to delete": (
        DeleteBeforeRequest(topic_id=ID, index=3, offset=5),
        f"{PARTITION} 0000000000000005 00",
    ),
    "records that were deleted": (DeleteBeforeResponse(log_start=5), "0000000000000005 00"),
    "batches": (
        FetchBatchesResponse(
            leader_epoch=1,
            high_watermark=2,
            last_stable_offset=3,
            log_start=4,
            eviction_floor=5,
            removals=8,
            next_offset=9,
            aborted=(FetchBatchesAbortedTransaction(producer_id=6, first_offset=7),),
            batches=b"b",
        ),
        "00000001 0000000000000002 0000000000000003 0000000000000004 0000000000000005 00"
        "0000000000000008 00 0000000000000009 00"
        "02 0000000000000006 0000000000000007 00"
        "02 62 00",
    ),
    "markers to write": (
        WriteMarkersRequest(
            markers=(
                WriteMarkersRequestMarker(
                    producer_id=1,
                    producer_epoch=2,
                    coordinator_epoch=3,
                    is_commit=True,
                    partitions=(TransactionPartition(topic_id=ID, index=3),),
                ),
            )
        ),
        f"02 0000000000000001 0002 00000003 01 02 {PARTITION} 00 00  00",
    ),
    "markers that were written": (
        WriteMarkersResponse(
            markers=(
                WriteMarkersResponseMarker(
                    producer_id=1,
                    partitions=(TransactionPartitionResult(topic_id=ID, index=3, error_code=6),),
                ),
            )
        ),
        f"02 0000000000000001 02 {PARTITION} 0006 00 00  00",
    ),
    "offsets to commit": (
        CommitTransactionOffsetsRequest(
            producer_id=1, producer_epoch=2, coordinator_epoch=3, is_commit=False, group_ids=("g",)
        ),
        "0000000000000001 0002 00000003 00 02 02 67 00",
    ),
    "offsets that were committed": (
        CommitTransactionOffsetsResponse(
            groups=(CommitTransactionOffsetsResponseGroup(group_id="g", error_code=16),)
        ),
        "02 02 67 0010 00 00",
    ),
    "a transaction to verify": (
        VerifyTransactionRequest(
            transactional_id=None,
            producer_id=1,
            producer_epoch=2,
            may_add=True,
            partitions=(TransactionPartition(topic_id=ID, index=3),),
            group_ids=("g",),
        ),
        f"00 0000000000000001 0002 01 02 {PARTITION} 00 02 02 67 00",
    ),
    "a transaction that was verified": (
        VerifyTransactionResponse(
            partitions=(TransactionPartitionResult(topic_id=ID, index=3, error_code=0),),
            missing_group_ids=("g",),
        ),
        f"0000 02 {PARTITION} 0000 00 02 02 67 00",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_messages_match_the_bytes_worked_out_by_hand(name):
    value, golden = GOLDEN[name]
    data = bytes.fromhex(golden)
    assert encode(value, 0) == data
    assert decode(type(value), data, 0) == value


def test_every_message_has_its_bytes_here():
    kinds = {type(value) for value, _ in GOLDEN.values()}
    assert kinds == {kind for api in PEER_APIS.values() for kind in (api.request, api.response)}
