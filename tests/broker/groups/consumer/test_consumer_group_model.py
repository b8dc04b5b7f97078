"""A model test of a consumer group: clients lose answers, die and restart, and so does the broker.

Clients behave as real ones do. Invariants: no partition is ever held by two members of the group,
no epoch that was answered ever falls, and when all is quiet every client has its target, within a
limited number of heartbeats.
"""

from __future__ import annotations

import enum
import os
from contextlib import suppress

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from millstream.broker.groups.consumer.consumer_group import ConsumerGroup
from millstream.broker.groups.consumer.member import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    MemberState,
)
from millstream.broker.groups.consumer.records import decode_groups
from millstream.broker.state.state_log import StateEntry
from millstream.config.schema import BrokerConfig
from millstream.errors import MillstreamError

from .consumer_clients import Client, FakeTopics, subscription_fields

EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200
CONFIG = BrokerConfig(
    group_members_max=6, consumer_session_timeout_ms=30_000, consumer_heartbeat_interval_ms=5_000
)
NAMES = ["apple", "banana", "cherry"]
INSTANCES = ["i1", "i2"]

SUBSCRIPTIONS = st.one_of(
    st.frozensets(st.sampled_from(NAMES)).map(lambda names: subscription_fields(topic_names=names)),
    st.sampled_from(["a.*", ".*an.*", ".*"]).map(
        lambda regex: subscription_fields(topic_regex=regex)
    ),
    st.just(subscription_fields(topic_names=frozenset({"apple"}), assignor="range")),
)


class Disk(enum.Enum):
    """How the disk handles changes to be stored."""

    SOUND = "at once"
    FULL = "not at all"
    SLOW = "later, after more requests"
    SLOW_AND_BAD = "not at all, but that shows later"


class NotStored(Exception):
    """The changes are not durable yet, so there is no answer."""


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Drives one group and its clients."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.topics = FakeTopics(apple=3, banana=4)
        self.stored: dict[bytes, bytes] = {}
        self.group = ConsumerGroup("g", CONFIG)
        self.all_clients: list[Client] = []
        self.epochs_told: dict[str, int] = {}
        self.epoch_told = 0
        self.disk = Disk.SOUND
        self.under_way: list[tuple[list[StateEntry], bool]] = []

    # Between clients and the group.

    def send(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """Pass a heartbeat to the group, and store its changes; fails if they are not stored."""
        answer = self.group.heartbeat(beat, self.topics.catalog, self.now)
        self.store()
        if answer.member_epoch > 0:
            assert answer.member_epoch >= self.epochs_told.get(answer.member_id, 0)
            self.epochs_told[answer.member_id] = answer.member_epoch
        self.epoch_told = max(self.epoch_told, self.group.epoch)
        return answer

    def store(self) -> None:
        """Store changes, or fail to: for now, or forever."""
        changes = self.group.take_changes(now_ms=int(self.now * 1000))
        if changes and self.disk is Disk.FULL:
            self.group.store_failed(self.now)
            raise NotStored
        if changes:
            self.under_way.append((changes, self.disk is not Disk.SLOW_AND_BAD))
        if self.under_way:
            # An answer waits for the changes stored last, of any request.
            if self.disk is not Disk.SOUND:
                raise NotStored
            _, is_stored = self.under_way[-1]
            self.finish_storing()
            if not is_stored:
                raise NotStored

    def finish_storing(self) -> None:
        """Finish the writes in flight, in order, each with success or not."""
        under_way, self.under_way = self.under_way, []
        for changes, is_stored in under_way:
            if is_stored:
                self.apply(changes)
            else:
                self.group.store_failed(self.now)

    def apply(self, changes: list[StateEntry]) -> None:
        for key, value in changes:
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value
        self.group.stored(changes)

    def beat(self, client: Client, *, is_answer_lost: bool = False) -> None:
        try:
            answer = self.send(client.beat())
        except NotStored:
            client.on_lost_response()
        except MillstreamError as error:
            client.on_error(error)
        else:
            if is_answer_lost:
                client.on_lost_response()
            else:
                client.on_response(answer)

    # Clients.

    @rule(
        target=clients, subscription=SUBSCRIPTIONS, instance=st.none() | st.sampled_from(INSTANCES)
    )
    def start(self, subscription: dict[str, object], instance: str | None) -> object:
        if sum(client.is_alive for client in self.all_clients) >= 5:
            return multiple()
        client = Client(f"m{len(self.all_clients)}", instance, subscription)
        self.all_clients.append(client)
        self.beat(client)
        return client

    @rule(client=clients, is_answer_lost=st.booleans(), releases=st.booleans())
    def heartbeat(self, client: Client, is_answer_lost: bool, releases: bool) -> None:
        if client.is_alive:
            if releases:
                client.release()
            self.beat(client, is_answer_lost=is_answer_lost)

    @rule(client=clients)
    def lose_request(self, client: Client) -> None:
        client.on_lost_response()

    @rule(client=clients, subscription=SUBSCRIPTIONS)
    def change_subscription(self, client: Client, subscription: dict[str, object]) -> None:
        client.subscribe(**subscription)

    @rule(client=consumes(clients))
    def die(self, client: Client) -> None:
        client.is_alive = False

    @rule(client=consumes(clients), is_temporary=st.booleans())
    def leave(self, client: Client, is_temporary: bool) -> None:
        if not client.is_alive:
            return
        leave_request = client.leave_request(is_temporary=is_temporary and bool(client.instance_id))
        with suppress(NotStored, MillstreamError):
            self.send(leave_request)

    # Time, topics and the broker.

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 4))
    def change_topic(self, name: str, count: int) -> None:
        if name not in self.topics:
            self.topics.create(name, count)
        elif count == 4:
            self.topics.delete(name)
        else:
            self.topics.grow(name, count)

    @rule(seconds=st.sampled_from([1.0, 4.0, 12.0, 31.0]))
    def advance_time(self, seconds: float) -> None:
        self.now += seconds
        if self.group.deadline is not None and self.group.deadline <= self.now:
            self.group.advance_time(self.now)
            with suppress(NotStored):
                self.store()

    @rule()
    def restart_broker(self) -> None:
        self.restore()

    @rule(disk=st.sampled_from(list(Disk)))
    def have_disk(self, disk: Disk) -> None:
        self.disk = disk

    def restore(self) -> None:
        self.finish_storing()
        saved = decode_groups(self.stored.items())
        self.group = (
            ConsumerGroup.restore("g", saved["g"], CONFIG, self.now)
            if saved
            else ConsumerGroup("g", CONFIG)
        )

    # Invariants.

    @invariant()
    def each_partition_is_in_one_hand(self) -> None:
        owners: dict[object, str] = {}
        for client in self.all_clients:
            if client.member_id not in self.group.members:
                continue
            for topic, numbers in client.hands.items():
                for number in numbers:
                    other = owners.setdefault((topic, number), client.member_id)
                    assert other == client.member_id

    @invariant()
    def nothing_is_in_a_hand_that_the_group_does_not_know_of(self) -> None:
        for client in self.all_clients:
            member = self.group.members.get(client.member_id)
            if member is None or member.has_left:
                continue
            for topic, numbers in client.hands.items():
                assert numbers <= member.held.get(topic, frozenset())

    @invariant()
    def no_epoch_falls(self) -> None:
        assert self.group.epoch >= self.epoch_told
        assert self.group.target_epoch <= self.group.epoch
        for member in self.group.members.values():
            assert member.epoch <= self.group.target_epoch
            assert member.joined_epoch <= self.group.epoch
            if member.epoch > 0:
                assert member.epoch >= self.epochs_told.get(member.member_id, 0)
            assert bool(member.revoking) == (member.state is MemberState.UNREVOKED)

    @invariant()
    def what_is_stored_is_the_group(self) -> None:
        if self.disk is not Disk.SOUND or not self.stored:
            return
        with suppress(NotStored):
            self.store()
        self.store()
        saved = decode_groups(self.stored.items())["g"]
        assert {member.member_id: member for member in saved.members} == self.group.members
        assert saved.targets == self.group.targets
        assert (saved.epoch, saved.target_epoch) == (self.group.epoch, self.group.target_epoch)

    def teardown(self) -> None:
        """Let everything settle, and check who has what."""
        self.disk = Disk.SOUND
        alive = [client for client in self.all_clients if client.is_alive]
        for _ in range(7 + 4 + 2 * len(alive)):
            self.now += 5.0
            self.group.advance_time(self.now)
            for client in alive:
                client.release()
                if client.is_alive:
                    self.beat(client)
        alive = [client for client in alive if client.is_alive]
        members = self.group.members
        assert self.group.state == ("Stable" if members else "Empty")
        for client in alive:
            if client.member_id in members:
                assert client.hands == self.group.targets[client.member_id]
                assert client.epoch == self.group.target_epoch
            else:  # Another client has its instance id.
                assert client.instance_id in {member.instance_id for member in members.values()}
        self.check_all_is_read()

    def check_all_is_read(self) -> None:
        topics = self.topics.catalog.topics
        wanted = {
            (shape.id, number)
            for name, shape in topics.items()
            if self.group.is_subscribed(name)
            for number in range(shape.partition_count)
        }
        owned = [
            (topic, number)
            for client in self.all_clients
            if client.member_id in self.group.members
            for topic, numbers in client.hands.items()
            for number in numbers
        ]
        assert sorted(owned) == sorted(wanted)


ConsumerGroupMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestConsumerGroup = ConsumerGroupMachine.TestCase
