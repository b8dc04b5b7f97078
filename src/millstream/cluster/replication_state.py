"""State of a partition in the metadata store: `partitions/<topic id>/<n>`.

The value is JSON:

    version               1; a greater one was written by a later release and is refused
    leader                node id, or -1
    leader_broker_epoch   broker epoch of the leader when it was elected
    leader_epoch          increases with every election
    isr                   [[node id, broker epoch], ...], in the order of `replicas`
    replicas              node ids; the first is the preferred leader
    adding, removing      node ids that a reassignment adds and removes; both are in `replicas`
    successor             node to which the leader has to hand over, or -1
    unclean_epochs        leader epochs that began with an unclean election, the newest last

A broker epoch is the create revision of a node's key `nodes/<id>`: it numbers the lives of nodes.
An ISR member is a node *in one life*, because only that life is known to have everything that was
committed. After a restart the directory of a node may be empty or older; see `life.py`.

The value changes only by a `Proposal`: compare and set on its revision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from millstream.errors import CorruptData, UnknownFormat

NO_NODE = -1
NO_LIFE = 0
"""As the broker epoch of a member: none of the node's lives is known to have every record.

A node that finds that records are missing in its log says so. The leader goes on waiting for it,
it cannot be elected, and it counts again when its leader has put a life of it into the ISR.
"""
VERSION = 1
UNCLEAN_EPOCHS_MAX = 16
"""Unclean elections that a partition remembers. An operator commands each one."""


class IsrMember(NamedTuple):
    """A node in one of its lives that has every committed record."""

    node: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ReplicationState:
    """Who leads a partition, who follows, and whose logs have everything that was committed."""

    leader: int
    leader_broker_epoch: int
    leader_epoch: int
    isr: tuple[IsrMember, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    successor: int = NO_NODE
    unclean_epochs: tuple[int, ...] = ()

    revision: int = 0
    """Revision of the last change; 0 if the state is not stored yet. Not part of the value."""

    @property
    def isr_nodes(self) -> tuple[int, ...]:
        return tuple(member.node for member in self.isr)

    @property
    def in_sync_nodes(self) -> tuple[int, ...]:
        """The nodes that have every committed record: the ISR without those that lost some."""
        return tuple(member.node for member in self.isr if member.broker_epoch != NO_LIFE)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment in progress, if there is one."""
        if not self.removing:  # As nearly always, and this is asked for very often.
            return self.replicas
        return tuple(node for node in self.replicas if node not in self.removing)

    def member(self, node: int) -> IsrMember | None:
        """Return the ISR member of a node."""
        return next((member for member in self.isr if member.node == node), None)

    def is_counted(self, node: int) -> bool:
        """Whether a node is in the ISR in one of its lives."""
        member = self.member(node)
        return member is not None and member.broker_epoch != NO_LIFE

    def disowned(self, node: int) -> ReplicationState:
        """Return the state in which a node is in the ISR in none of its lives.

        It is not taken out: acks=all would be answered though too few replicas have the records.
        """
        isr = tuple(IsrMember(m.node, NO_LIFE) if m.node == node else m for m in self.isr)
        return replace(self, isr=isr)

    def at(self, revision: int) -> ReplicationState:
        """Return a copy with the revision at which the store has it."""
        return replace(self, revision=revision)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of a partition's state, and the comparisons under which it takes effect.

    The shell makes one transaction of it. A transaction that timed out is *unknown*: it may still
    take effect later, as long as the revision is the same.
    """

    state: ReplicationState
    """The new value."""

    revision: int
    """The key must have been changed last at this revision; 0 means that it must not exist."""

    nodes: tuple[IsrMember, ...] = ()
    """Each of these nodes must be registered, with this broker epoch; with `NO_LIFE` it must not be
    registered."""

    controller_epoch: int | None = None
    """Create revision that the key `controller` must have, if the controller proposes."""

    def holds(self, revision: int, broker_epochs: Mapping[int, int], controller_epoch: int) -> bool:
        """Whether the comparisons hold: what the transaction means to a store.

        `broker_epochs` has the create revisions of the registered nodes.
        """
        return (
            self.revision == revision
            and all(broker_epochs.get(node, NO_LIFE) == epoch for node, epoch in self.nodes)
            and self.controller_epoch in (None, controller_epoch)
        )


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The value in the store. Fields of later releases within the version are ignored."""

    version: int
    leader: int
    leader_broker_epoch: int
    leader_epoch: int
    isr: tuple[IsrMember, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    successor: int = NO_NODE
    unclean_epochs: tuple[int, ...] = ()


class _Version(msgspec.Struct):
    version: int


_FIELDS = tuple(name for name in _Stored.__struct_fields__ if name != "version")


def encode_state(state: ReplicationState) -> bytes:
    """Return the value to store."""
    fields = {name: getattr(state, name) for name in _FIELDS}
    return msgspec.json.encode(_Stored(version=VERSION, **fields))


def decode_state(value: bytes, revision: int) -> ReplicationState:
    """Read a stored value; raise `UnknownFormat` or `CorruptData`."""
    try:
        version = msgspec.json.decode(value, type=_Version).version
        if version > VERSION:
            raise UnknownFormat(f"version of a partition must be at most {VERSION}, got {version}")
        stored = msgspec.json.decode(value, type=_Stored)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"state of a partition: {error}") from error
    state = ReplicationState(**{name: getattr(stored, name) for name in _FIELDS}, revision=revision)
    if problem := _problem(state):
        raise CorruptData(f"state of a partition: {problem}")
    return state


def _problem(state: ReplicationState) -> str | None:
    """Return the first thing in a state that contradicts the others."""
    replicas, nodes = set(state.replicas), state.isr_nodes
    rules = (
        (
            0 < len(replicas) == len(state.replicas),
            f"replicas must be different nodes, got {list(state.replicas)}",
        ),
        (
            len(set(nodes)) == len(nodes),
            f"members of the ISR must be different nodes, got {list(nodes)}",
        ),
        (
            replicas.issuperset(nodes),
            f"ISR {list(nodes)} must be within replicas {list(state.replicas)}",
        ),
        (
            replicas.issuperset((*state.adding, *state.removing)),
            f"a reassignment names nodes that are not in replicas {list(state.replicas)}",
        ),
        (
            state.leader == NO_NODE or state.leader in nodes,
            f"leader must be in ISR {list(nodes)}, got {state.leader}",
        ),
        (
            state.leader_epoch >= 0,
            f"leader epoch must be at least 0, got {state.leader_epoch}",
        ),
    )
    return next((message for is_met, message in rules if not is_met), None)
