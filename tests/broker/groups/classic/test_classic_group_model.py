"""A model test of classic groups, under all that clients, time and restarts can do."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.broker.groups.classic.classic_group import NEW_MEMBER_SECONDS_MAX
from millstream.broker.groups.classic.rebalance import ClassicLimits
from millstream.broker.groups.values import GroupJoinResult, GroupSyncResult, LeavingMember
from millstream.errors import (
    DiskFull,
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    MemberIdNeeded,
    MillstreamError,
    RebalanceInProgress,
    UnknownMember,
)

from .group_bench import REBALANCE_MS, SESSION_MS, Bench

PARTITIONS = [f"p{number}" for number in range(9)]
INSTANCES = [None, None, None, "one", "two"]
PATIENCE = NEW_MEMBER_SECONDS_MAX + 2 * (REBALANCE_MS + SESSION_MS) / 1000
"""After so long without a word from anyone, nobody may still wait."""


class Client:
    """A correct consumer: it follows the answers, or does nothing at all."""

    def __init__(self, number: int, instance_id: str | None) -> None:
        self.number = number
        self.instance_id = instance_id
        self.forget()

    def forget(self) -> None:
        """Start again, as after a restart of the client."""
        self.member_id = ""
        self.ticket: int | None = None
        self.joined: GroupJoinResult | None = None
        self.has_share = False

    @property
    def owner(self) -> str:
        """Identifies the client: a static member is the same under all its member ids."""
        return self.instance_id or self.member_id


class ClassicGroupModel(RuleBasedStateMachine):
    """Clients, a group, and the invariants."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = StoringBench()
        self.clients = [Client(number, instance) for number, instance in enumerate(INSTANCES)]
        self.generation_told = 0
        self.owners: dict[tuple[int, str], str] = {}
        self.open: set[int] = set()
        self.heard: set[int] = set()

    # Clients.

    @rule(numbers=st.sets(st.integers(0, 4)), metadata=st.sampled_from([b"a", b"a", b"b"]))
    def go_on(self, numbers: set[int], metadata: bytes) -> None:
        """Some clients take their next step, and little time passes."""
        for number in sorted(numbers):
            client = self.clients[number]
            if client.ticket is not None:
                continue
            if client.joined is None:
                self.join(number, metadata, old=number % 2 == 0)
            elif not client.has_share:
                self.sync(number)
            else:
                self.heartbeat(number)
        self.advance_time(0.2)

    @rule()
    def all_go_on(self) -> None:
        """All clients take two steps, so that often all are in the group and have an assignment."""
        for _ in range(2):
            self.go_on(set(range(len(self.clients))), b"a")

    @rule(number=st.integers(0, 4), metadata=st.sampled_from([b"a", b"b"]), old=st.booleans())
    def join(self, number: int, metadata: bytes, old: bool) -> None:
        client = self.clients[number]
        client.ticket = self.bench.join(
            client.member_id,
            instance_id=client.instance_id,
            needs_known_id=not old,
            can_skip_assignment=not old,
            protocols={"range": metadata, "sticky": b""},
        )
        self.open.add(client.ticket)
        self._deliver()

    @rule(number=st.integers(0, 4))
    def sync(self, number: int) -> None:
        client = self.clients[number]
        if client.joined is None:
            return
        joined = client.joined
        client.ticket = self.bench.sync(
            joined.member_id,
            joined.generation,
            instance_id=client.instance_id,
            assignments=_divide(joined) if joined.members else {},
        )
        self.open.add(client.ticket)
        self._deliver()

    @rule(number=st.integers(0, 4))
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        if client.joined is None:
            return
        try:
            self.bench.heartbeat(client.member_id, client.joined.generation, client.instance_id)
        except MillstreamError as error:
            self._obey(client, error)
        else:
            assert client.joined.generation == self.bench.group.generation

    @rule(number=st.integers(0, 4))
    def leave(self, number: int) -> None:
        client = self.clients[number]
        self.bench.leave(LeavingMember(client.member_id, client.instance_id))
        client.forget()
        self._deliver()

    @rule(number=st.integers(0, 4))
    def restart_client(self, number: int) -> None:
        """The client starts again without state; the answer to its waiting request is lost."""
        self.clients[number].forget()

    @rule(number=st.integers(0, 4), age=st.integers(0, 2))
    def commit(self, number: int, age: int) -> None:
        client = self.clients[number]
        if client.joined is None:
            return
        generation = client.joined.generation - age
        group = self.bench.group
        try:
            group.check_commit(
                client.member_id, generation, client.instance_id, is_transactional=False
            )
        except MillstreamError:
            return
        assert group.state in ("Stable", "PreparingRebalance") or generation < 0
        if generation >= 0:
            assert generation == group.generation
            assert generation >= self.generation_told, "an old generation commits"

    # Time and restarts.

    @rule(
        seconds=st.sampled_from(
            [0.05, 1.0, SESSION_MS / 2000, SESSION_MS / 1000, REBALANCE_MS / 1000]
        )
    )
    def advance_time(self, seconds: float) -> None:
        self.bench.advance_time(seconds)
        self._deliver()

    @precondition(lambda self: self.bench.stored is not None)
    @rule()
    def restart(self) -> None:
        self.bench.restart()
        self.open.clear()
        for client in self.clients:
            client.ticket = None

    @rule()
    def fill_disk(self) -> None:
        self.bench.is_disk_full = True

    @rule()
    def free_disk(self) -> None:
        self.bench.is_disk_full = False

    # Invariants.

    @invariant()
    def nothing_is_overdue(self) -> None:
        deadline = self.bench.group.deadline
        assert deadline is None or deadline > self.bench.now or not self.bench.has_passed

    @invariant()
    def a_group_without_members_is_empty(self) -> None:
        described = self.bench.group.describe()
        assert (not described.members) == (described.state == "Empty") or (
            described.state == "PreparingRebalance"
        )

    def teardown(self) -> None:
        """No request waits forever: when all clients are silent, those that wait get an answer."""
        self.bench.advance_time(PATIENCE)
        self._deliver()
        assert not self.open, f"never answered: {self.open}"
        assert self.bench.group.is_empty

    def _deliver(self) -> None:
        """Pass the answers to the clients."""
        for ticket, value in self.bench.take_answers().items():
            self.open.discard(ticket)
            if isinstance(value, GroupJoinResult):
                assert value.generation >= self.generation_told, "the generation fell"
                self.generation_told = value.generation
            client = next((c for c in self.clients if c.ticket == ticket), None)
            if client is not None:
                client.ticket = None
                self._obey(client, value)

    def _obey(self, client: Client, value: Any) -> None:
        if isinstance(value, MemberIdNeeded | GroupJoinResult):
            client.member_id = value.member_id
        if isinstance(value, GroupJoinResult):
            client.joined = value
            client.has_share = False
        elif isinstance(value, GroupSyncResult):
            client.has_share = True
            self._own(client, value)
        elif isinstance(value, UnknownMember | FencedInstance | GroupFull):
            client.forget()
        elif isinstance(value, IllegalGeneration | RebalanceInProgress | DiskFull):
            client.joined = None
        else:
            assert isinstance(value, MemberIdNeeded), f"not an answer to be expected: {value!r}"

    def _own(self, client: Client, synced: GroupSyncResult) -> None:
        assert client.joined is not None
        generation = client.joined.generation
        assert generation == self.bench.group.generation or self.bench.group.generation > generation
        share = set(filter(None, synced.assignment.decode().split(",")))
        for partition in share:
            owner = self.owners.setdefault((generation, partition), client.owner)
            assert owner == client.owner, f"{partition} has two owners in {generation}"
        assert share, "there is enough for all, and the leader assigns to all"


class StoringBench(Bench):
    """A bench that sends answers when the state that they depend on is stored, as a node does."""

    def __init__(self) -> None:
        super().__init__(ClassicLimits(members_max=8, initial_delay_ms=100))
        self.is_disk_full = False
        self.has_passed = False
        self._told: dict[int, Any] = {}

    def advance_time(self, seconds: float) -> None:
        super().advance_time(seconds)
        self.has_passed = True

    def take_answers(self) -> dict[int, Any]:
        told, self._told = self._told, {}
        return told

    def _take(self, answers: Any) -> None:
        self.has_passed = False
        changes = self.group.take_changes(now_ms=1_000)
        failed = bool(changes) and self.is_disk_full
        for _, value in changes if not failed else []:
            self.stored = value
        for ticket, value in answers:
            assert ticket not in self.answers, "a ticket is answered once"
            is_error = isinstance(value, MillstreamError)
            self.answers[ticket] = value if is_error or not failed else DiskFull("full")
            self._told[ticket] = self.answers[ticket]
        if failed:
            for ticket, value in self.group.store_failed(self.now):
                assert ticket not in self.answers
                self.answers[ticket] = self._told[ticket] = value


def _divide(joined: GroupJoinResult) -> dict[str, bytes]:
    """Assign every partition to one member."""
    shares: dict[str, list[str]] = {member.member_id: [] for member in joined.members}
    names = list(shares)
    for number, partition in enumerate(PARTITIONS):
        shares[names[number % len(names)]].append(partition)
    return {member_id: ",".join(share).encode() for member_id, share in shares.items()}


ClassicGroupModel.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None
)
TestClassicGroup = ClassicGroupModel.TestCase
