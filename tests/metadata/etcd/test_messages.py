"""Requests to etcd, and the differences after a compaction, without etcd."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MalformedAnswer
from millstream.metadata.etcd.change_feed import KeyRevisions, differences
from millstream.metadata.etcd.gateway import EtcdRefused, refusal_of
from millstream.metadata.etcd.messages import (
    RangeResponse,
    decoded,
    entries_of,
    get_request,
    page_request,
    range_end,
    transaction_request,
)
from millstream.metadata.interface import (
    ABSENT,
    Compare,
    CompareCreated,
    MetadataChange,
    MetadataEntry,
    MetadataList,
)

PREFIX = b"/millstream/c/"


def b64(text: str) -> str:
    return base64.b64encode(PREFIX + text.encode()).decode()


def test_no_read_is_serializable() -> None:
    for request in (get_request(b"a"), page_request(b"a", b"b", limit=1, revision=7)):
        assert "serializable" not in request


def test_a_transaction_names_what_it_compares_and_changes_in_the_order_of_keys() -> None:
    request = transaction_request(
        PREFIX,
        [Compare("a", 5), CompareCreated("b", ABSENT)],
        {"z": b"1", "m": b"2"},
        ["n"],
        lease=9,
    )
    assert request["compare"] == [
        {"key": b64("a"), "target": "MOD", "result": "EQUAL", "mod_revision": "5"},
        {"key": b64("b"), "target": "CREATE", "result": "EQUAL", "create_revision": "0"},
    ]
    assert request["success"] == [
        {"requestPut": {"key": b64("m"), "value": "Mg==", "lease": "9"}},
        {"requestDeleteRange": {"key": b64("n")}},
        {"requestPut": {"key": b64("z"), "value": "MQ==", "lease": "9"}},
    ]


def test_a_transaction_without_changes_still_reads_from_the_leader() -> None:
    """etcd evaluates one without operations on the state that a member happens to have."""
    request = transaction_request(PREFIX, [Compare("a", 5)], {}, [])
    for branch in (request["success"], request["failure"]):
        (operation,) = branch
        assert "serializable" not in operation["requestRange"]


def test_the_end_of_a_range_is_after_all_keys_of_a_prefix() -> None:
    assert range_end(b"/a/") == b"/a0"


def test_a_key_outside_of_the_cluster_is_malformed() -> None:
    body = b'{"header": {"revision": "3"}, "kvs": [{"key": "YQ==", "mod_revision": "3"}]}'
    with pytest.raises(MalformedAnswer, match="outside of"):
        list(entries_of(decoded(body, RangeResponse), PREFIX))


@pytest.mark.parametrize(
    ("status", "body", "is_unmade"),
    [
        (404, b'{"error":"e","message":"etcdserver: requested lease not found","code":5}', True),
        (503, b'{"error":"e","message":"etcdserver: request timed out","code":14}', False),
        (503, b'{"error":"e","message":"etcdserver: no leader","code":14}', True),
        (503, b'{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}', True),
        (503, b'{"error":"e","message":"etcdserver: leader changed","code":14}', False),
        (429, b'{"error":"e","message":"etcdserver: too many requests","code":8}', True),
        (500, b'{"error":"e","message":"what?","code":2}', False),
        (404, b"Not Found\n", True),
        (502, b"<html>", False),
        (200, b"", False),
    ],
)
def test_only_a_refusal_proves_that_nothing_was_made(
    status: int, body: bytes, is_unmade: bool
) -> None:
    assert isinstance(refusal_of("here", status, body), EtcdRefused) == is_unmade


KEYS = st.sampled_from("abcdef")
OPERATIONS = st.lists(st.tuples(KEYS, st.none() | st.binary(min_size=1, max_size=2)), max_size=20)


def follow(rows: dict[str, MetadataEntry], operations: Any, revision: int) -> int:
    for key, value in operations:
        revision += 1
        old = rows.pop(key, None)
        if value is not None:
            created = old.created if old else revision
            rows[key] = MetadataEntry(key, value, revision, created)
    return revision


@given(before=OPERATIONS, after=OPERATIONS)
def test_differences_lead_to_what_there_is_in_order(before: Any, after: Any) -> None:
    rows: dict[str, MetadataEntry] = {}
    first = follow(rows, before, 0)
    known = {key: KeyRevisions(*row[2:]) for key, row in rows.items()}
    values = {key: row.value for key, row in rows.items()}
    last = follow(rows, after, first)
    listed = MetadataList([rows[key] for key in sorted(rows)], last)
    changes = differences(known, listed)
    revisions = [change.revision for change in changes]
    assert revisions == sorted(revisions)
    assert all(first < revision <= last for revision in revisions)
    for change in changes:
        if change.value is None:
            del values[change.key]
        else:
            values[change.key] = change.value
    assert values == {key: row.value for key, row in rows.items()}


def test_a_key_that_was_created_again_is_deleted_first() -> None:
    known = {"a": KeyRevisions(5, 2), "b": KeyRevisions(3, 3)}
    listed = MetadataList([MetadataEntry("a", b"new", 9, 8)], 11)
    assert differences(known, listed) == [
        MetadataChange("a", None, 7),
        MetadataChange("a", b"new", 9),
        MetadataChange("b", None, 11),
    ]
