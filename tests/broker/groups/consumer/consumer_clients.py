"""Consumers as clients of KIP-848 behave, for tests: what they send, and what is in their hands."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from millstream.broker.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from millstream.broker.groups.consumer.partition_set import PartitionSet, intersection, union
from millstream.broker.groups.consumer.subscriptions import TopicImage, TopicsImage
from millstream.errors import (
    FencedInstance,
    FencedMemberEpoch,
    MillstreamError,
    UnknownMember,
)

REBALANCE_TIMEOUT_MS = 20_000


def wish(**fields: object) -> dict[str, object]:
    """What a member wants, as fields of a heartbeat."""
    return {"topic_names": frozenset(), "topic_regex": "", **fields}


@dataclass(eq=False)
class Client:
    """One consumer. It takes what it is given at once, and lets go when `let_go` is called.

    It says only what changed since it last spoke, and everything when an answer was lost.
    """

    member_id: str
    instance_id: str | None = None
    wants: dict[str, object] = field(default_factory=wish)
    epoch: int = JOIN_EPOCH
    hands: PartitionSet = field(default_factory=dict)
    """What it has, and reads from."""
    allowed: PartitionSet = field(default_factory=dict)
    """What it was last told that it may have."""
    is_alive: bool = True
    _said_owned: PartitionSet | None = None
    _must_say_all: bool = True
    _must_say_wishes: bool = False

    def want(self, **fields: object) -> None:
        """Change the subscription."""
        self.wants = wish(**fields)
        self._must_say_wishes = True

    def let_go(self) -> None:
        """Finish giving up what it may not have any more."""
        self.hands = intersection(self.hands, self.allowed)

    def beat(self) -> ConsumerHeartbeat:
        """What it says next."""
        is_all = self._must_say_all or self.epoch == JOIN_EPOCH
        fields: dict[str, object] = {}
        if is_all or self._must_say_wishes:
            fields.update(self.wants)
        if is_all:
            fields["rebalance_timeout_ms"] = REBALANCE_TIMEOUT_MS
        if is_all or self.hands != self._said_owned:
            fields["owned"] = self.hands
        return ConsumerHeartbeat(
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            **fields,  # type: ignore[arg-type]
        )

    def hear(self, answer: ConsumerHeartbeatResult) -> None:
        """Take the answer to `beat`."""
        assert answer.member_id == self.member_id
        self._said_owned = self.hands
        self._must_say_all = self._must_say_wishes = False
        self.epoch = answer.member_epoch
        if answer.assigned is not None:
            self.allowed = answer.assigned
            self.hands = union(self.hands, answer.assigned)

    def miss(self) -> None:
        """No answer came."""
        self._must_say_all = True

    def fail(self, error: MillstreamError) -> None:
        """Do what a client does about an error."""
        self._must_say_all = True
        if isinstance(error, FencedMemberEpoch | UnknownMember | FencedInstance):
            self.epoch = JOIN_EPOCH
            self.hands = self.allowed = {}
        if isinstance(error, FencedInstance):
            self.is_alive = False

    def farewell(self, *, is_for_a_while: bool = False) -> ConsumerHeartbeat:
        """Let go of everything and leave."""
        self.is_alive = False
        self.hands = self.allowed = {}
        epoch = LEAVE_STATIC_EPOCH if is_for_a_while else LEAVE_EPOCH
        return ConsumerHeartbeat(
            member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )


class FakeTopics:
    """Topics that tests create, grow and delete."""

    def __init__(self, **partition_counts: int) -> None:
        self._revision = 0
        self._next_id = 1
        self._shapes: dict[str, TopicImage] = {}
        for name, count in partition_counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> None:
        self._set(name, TopicImage(UUID(int=self._next_id), count))
        self._next_id += 1

    def grow(self, name: str, more: int) -> None:
        shape = self._shapes[name]
        self._set(name, TopicImage(shape.id, shape.partition_count + more))

    def delete(self, name: str) -> None:
        del self._shapes[name]
        self._revision += 1

    def _set(self, name: str, shape: TopicImage) -> None:
        self._shapes[name] = shape
        self._revision += 1

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def id(self, name: str) -> UUID:
        return self._shapes[name].id

    @property
    def catalog(self) -> TopicsImage:
        return TopicsImage(self._revision, dict(self._shapes))
