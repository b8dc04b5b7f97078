"""The state of a partition in the metadata store, and the comparisons of a proposal."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from millstream.cluster.replication_state import (
    NO_LIFE,
    NO_NODE,
    IsrMember,
    Proposal,
    ReplicationState,
    decode_state,
    encode_state,
)
from millstream.errors import CorruptData, UnknownFormat

from .machines import LIVES, members, state_of


def test_a_state_is_stored_as_json_and_read_with_its_revision():
    state = state_of(
        isr=(1, 3), epoch=4, adding=(3,), removing=(2,), successor=3, unclean_epochs=(2,)
    )
    assert decode_state(encode_state(state), 5) == state
    assert msgspec.json.decode(encode_state(state)) == {
        "version": 1,
        "leader": 1,
        "leader_broker_epoch": 11,
        "leader_epoch": 4,
        "isr": [[1, 11], [3, 13]],
        "replicas": [1, 2, 3],
        "adding": [3],
        "removing": [2],
        "successor": 3,
        "unclean_epochs": [2],
    }


def test_fields_of_a_later_release_are_ignored_and_a_later_version_is_refused():
    value = msgspec.json.decode(encode_state(state_of()))
    assert decode_state(msgspec.json.encode({**value, "more": 1}), 5) == state_of()
    with pytest.raises(UnknownFormat, match="must be at most 1, got 2"):
        decode_state(msgspec.json.encode({**value, "version": 2}), 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replicas": ()}, "replicas must be different nodes"),
        ({"replicas": (1, 2, 3, 3)}, "replicas must be different nodes"),
        ({"isr": (*members(1, 2), IsrMember(2, 99))}, "members of the ISR must be different"),
        ({"replicas": (1, 2)}, r"ISR \[1, 2, 3\] must be within replicas \[1, 2\]"),
        ({"adding": (9,)}, "names nodes that are not in replicas"),
        ({"leader": 4}, r"leader must be in ISR \[1, 2, 3\], got 4"),
        ({"leader_epoch": -1}, "leader epoch must be at least 0, got -1"),
    ],
)
def test_a_state_that_contradicts_itself_is_corrupt(change, message):
    with pytest.raises(CorruptData, match=message):
        decode_state(encode_state(replace(state_of(), **change)), 5)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": "x"}'])
def test_other_bytes_are_corrupt(value):
    with pytest.raises(CorruptData, match="state of a partition"):
        decode_state(value, 5)


def test_a_partition_may_have_no_leader():
    state = replace(state_of(), leader=NO_NODE)
    assert decode_state(encode_state(state), 5) == state


def test_the_target_of_a_reassignment_is_what_remains():
    state = ReplicationState(1, 11, 0, members(1), (3, 1, 2), adding=(3,), removing=(2,))
    assert state.target == (3, 1)


def test_a_proposal_holds_only_at_its_revision_and_in_the_lives_that_it_names():
    proposal = Proposal(state_of(), revision=5, nodes=members(1, 3))
    assert proposal.holds(5, LIVES, 9)
    assert not proposal.holds(6, LIVES, 9)
    assert not proposal.holds(5, {**LIVES, 3: 20}, 9)
    assert not proposal.holds(5, {1: 11}, 9)
    assert not replace(proposal, controller_epoch=8).holds(5, LIVES, 9)
    assert replace(proposal, controller_epoch=9).holds(5, LIVES, 9)


def test_a_proposal_may_need_that_a_node_is_not_registered():
    proposal = Proposal(state_of(), revision=5, nodes=(IsrMember(2, NO_LIFE),))
    assert proposal.holds(5, {1: 11}, 9)
    assert not proposal.holds(5, LIVES, 9)
