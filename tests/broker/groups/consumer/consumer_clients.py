"""Clients of consumer groups (KIP-848) for tests."""

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


def subscription_fields(**fields: object) -> dict[str, object]:
    """Return the subscription of a member, as fields of a heartbeat."""
    return {"topic_names": frozenset(), "topic_regex": "", **fields}


@dataclass(eq=False)
class Client:
    """One consumer. It takes granted partitions at once, and releases others when `release` is
    called.

    It sends only what changed since its last heartbeat, and everything when an answer was lost.
    """

    member_id: str
    instance_id: str | None = None
    subscription: dict[str, object] = field(default_factory=subscription_fields)
    epoch: int = JOIN_EPOCH
    hands: PartitionSet = field(default_factory=dict)
    """The partitions that it has, and reads."""
    allowed: PartitionSet = field(default_factory=dict)
    """The partitions that it may have, by the last answer."""
    is_alive: bool = True
    _sent_owned: PartitionSet | None = None
    _must_send_all: bool = True
    _must_send_subscription: bool = False

    def subscribe(self, **fields: object) -> None:
        """Change the subscription."""
        self.subscription = subscription_fields(**fields)
        self._must_send_subscription = True

    def release(self) -> None:
        """Release what it may not have any more."""
        self.hands = intersection(self.hands, self.allowed)

    def beat(self) -> ConsumerHeartbeat:
        """Return the next heartbeat."""
        is_all = self._must_send_all or self.epoch == JOIN_EPOCH
        fields: dict[str, object] = {}
        if is_all or self._must_send_subscription:
            fields.update(self.subscription)
        if is_all:
            fields["rebalance_timeout_ms"] = REBALANCE_TIMEOUT_MS
        if is_all or self.hands != self._sent_owned:
            fields["owned"] = self.hands
        return ConsumerHeartbeat(
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            **fields,  # type: ignore[arg-type]
        )

    def on_response(self, answer: ConsumerHeartbeatResult) -> None:
        """Handle the answer to `beat`."""
        assert answer.member_id == self.member_id
        self._sent_owned = self.hands
        self._must_send_all = self._must_send_subscription = False
        self.epoch = answer.member_epoch
        if answer.assigned is not None:
            self.allowed = answer.assigned
            self.hands = union(self.hands, answer.assigned)

    def on_lost_response(self) -> None:
        """Handle that no answer came."""
        self._must_send_all = True

    def on_error(self, error: MillstreamError) -> None:
        """Handle an error as clients do."""
        self._must_send_all = True
        if isinstance(error, FencedMemberEpoch | UnknownMember | FencedInstance):
            self.epoch = JOIN_EPOCH
            self.hands = self.allowed = {}
        if isinstance(error, FencedInstance):
            self.is_alive = False

    def leave_request(self, *, is_temporary: bool = False) -> ConsumerHeartbeat:
        """Release everything, and return the request to leave."""
        self.is_alive = False
        self.hands = self.allowed = {}
        epoch = LEAVE_STATIC_EPOCH if is_temporary else LEAVE_EPOCH
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
