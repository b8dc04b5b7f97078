"""Several clients, including zombies, against one coordinator that may crash at any time.

Every transaction has a tag, which its records carry into the journals of the partitions. The
journals survive every crash, so in the end they show what readers would have seen of each tag. The
following must hold even if requests are lost, repeated or delayed, disks fail and timeouts expire:

- all partitions and groups show the same single outcome of a tag, and every tag has an outcome;
- a tag is committed only if its own client requested it, and never after an abort was answered;
- the outcome that was answered is the outcome that is shown;
- after a producer is initialised, every request of an older one fails;
- of the tags published together, all are committed or none, one set for each sequence, and none
  under a sequence that is not above those already answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from millstream.broker.transactions.publication import (
    NO_SEQUENCE,
    ProposedTransaction,
    PublicationProposal,
    PublicationResult,
)
from millstream.broker.transactions.transaction import TransactionProducer, TransactionState
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    ConcurrentTransaction,
    DiskFull,
    InvalidProducerEpoch,
    InvalidProducerMapping,
    InvalidTransactionState,
    LogOffline,
    MillstreamError,
    ProducerFenced,
    Unavailable,
    UnknownTransaction,
)

from .transaction_fakes import Data, Node, turns

EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200
STEPS = 40

PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
IDS = ["q/a", "q/b"]
PREFIXES = ["", "q/a", "q/"]
SEQUENCE_MAX = 3
TIMEOUT_MS = 30_000
EXPIRATION_MS = 200_000
GONE = (ProducerFenced, InvalidProducerEpoch, InvalidProducerMapping)
"""Errors of a producer that was fenced or has expired."""


@dataclass(eq=False)
class Client:
    """One instance of a transactional producer that behaves as a client library does."""

    transactional_id: str
    is_bumping: bool
    producer: TransactionProducer | None = None
    tag: int = 0
    decision: bool | None = None
    """Requested but not yet answered; the client repeats the request until it is."""
    is_resuming: bool = False
    """Whether it requested a new epoch after an error and has no response yet."""
    announced: set[tuple[str, int]] = field(default_factory=set)
    has_group: bool = False
    is_open: bool = False
    is_chosen: bool = False
    """Whether a publisher ends its transaction; it may keep writing, as a zombie does."""
    is_gone: bool = False
    generation: int = 0
    busy: asyncio.Task[None] | None = None
    sending: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def is_sender(self) -> bool:
        """Return whether it may send a batch; other batches may be in flight."""
        return self.producer is not None and (self.busy is None or self.busy.done())

    @property
    def is_free(self) -> bool:
        """Return whether it has a response to every request."""
        return (self.busy is None or self.busy.done()) and all(t.done() for t in self.sending)


@dataclass(eq=False)
class Attempt:
    """The publication of one driver run, which may be requested repeatedly."""

    proposal: PublicationProposal
    tags: frozenset[int]
    is_too_late: bool
    """Whether this or a higher sequence was answered as published before the attempt was made."""
    answers: list[PublicationResult] = field(default_factory=list)


class TransactionsMachine(RuleBasedStateMachine):
    """Clients, their node, and the expected state of each tag."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clients: list[Client] = []
        self.tags = 0
        self.wanted: dict[int, set[bool]] = defaultdict(set)
        self.answered: dict[int, bool] = {}
        self.generations = dict.fromkeys(IDS, 0)
        self.late_ends: list[tuple[str, TransactionProducer, bool]] = []
        self.attempts: list[Attempt] = []
        self.told_sequences: set[int] = set()
        self.answered_sequence = -1
        self.failures: list[str] = []

    @initialize()
    def begin(self) -> None:
        config = BrokerConfig(
            transactional_id_expiration_ms=EXPIRATION_MS, publication_expiration_ms=2**53
        )
        self.node = Node(config)
        self.run(self.start())

    async def start(self) -> None:
        await self.node.transactions.start()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)
        assert not self.failures, self.failures

    def new_tag(self) -> int:
        self.tags += 1
        return self.tags

    def begin_request(self, client: Client, work: Coroutine[Any, Any, None]) -> None:
        self.run(self.spawn(client, work))

    async def spawn(self, client: Client, work: Coroutine[Any, Any, None]) -> None:
        client.busy = asyncio.get_running_loop().create_task(self.guard(client, work))
        await turns()

    async def guard(self, client: Client, work: Coroutine[Any, Any, None]) -> None:
        """Handle errors as a client library does, and record those that must not happen."""
        newest = self.generations[client.transactional_id]
        was_overtaken = client.producer is not None and client.generation < newest
        try:
            await work
        except GONE:
            client.is_gone = True
        except Unavailable:
            pass  # Retriable.
        except LogOffline:
            pass
        except InvalidTransactionState as error:
            # The transaction timed out and was aborted; the library then abandons a commit.
            if not (client.decision and client.is_bumping and self.is_aborted(client)):
                self.failures.append(f"{client}: {error!r}")
            client.is_gone = True
        except MillstreamError as error:
            if not was_overtaken:
                self.failures.append(f"{client}: {error!r}")
        else:
            if was_overtaken and client.generation < newest:
                self.failures.append(f"{client} was overtaken and not refused")

    def is_aborted(self, client: Client) -> bool:
        try:
            state = self.node.transactions.describe(client.transactional_id).state
        except UnknownTransaction:
            return True  # The id has expired, so its transaction had ended.
        return state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)

    # Clients.

    @rule(transactional_id=st.sampled_from(IDS), is_bumping=st.booleans())
    def start_instance(self, transactional_id: str, is_bumping: bool) -> None:
        client = Client(transactional_id, is_bumping)
        self.clients.append(client)
        self.begin_request(client, self.init(client))

    async def init(self, client: Client) -> None:
        made = await self.node.transactions.init_producer(client.transactional_id, TIMEOUT_MS)
        client.producer, client.tag = made, self.new_tag()
        self.overtake_others(client)

    def overtake_others(self, client: Client) -> None:
        self.generations[client.transactional_id] += 1
        client.generation = self.generations[client.transactional_id]

    @precondition(lambda self: any(c.is_free and c.producer is None for c in self.clients))
    @rule(data=st.data())
    def start_instance_again(self, data: st.DataObject) -> None:
        client = data.draw(
            st.sampled_from([c for c in self.clients if c.is_free and c.producer is None])
        )
        self.begin_request(client, self.init(client))

    def free(self, data: st.DataObject) -> Client:
        """Return a client that has a response to every request; it may be a zombie."""
        return data.draw(
            st.sampled_from([c for c in self.clients if c.is_free and c.producer is not None])
        )

    @precondition(lambda self: any(c.is_sender for c in self.clients))
    @rule(data=st.data(), where=st.sampled_from(PARTITIONS))
    def produce(self, data: st.DataObject, where: tuple[str, int]) -> None:
        client = data.draw(st.sampled_from([c for c in self.clients if c.is_sender]))
        if client.decision is None:
            self.run(self.begin_sending(client, where))

    async def begin_sending(self, client: Client, where: tuple[str, int]) -> None:
        work = self.guard(client, self.send_batch(client, where))
        client.sending.append(asyncio.get_running_loop().create_task(work))
        await turns()

    async def send_batch(self, client: Client, where: tuple[str, int]) -> None:
        assert client.producer is not None
        transactions = self.node.transactions
        name = client.transactional_id
        if not client.is_bumping and where not in client.announced:
            await transactions.add_partitions(name, *client.producer, [where])
            client.announced.add(where)
        if not transactions.is_ongoing(*client.producer, *where):
            await transactions.ensure_partitions(
                name, *client.producer, [where], may_add=client.is_bumping
            )
        if not transactions.is_ongoing(*client.producer, *where):
            # A publication may have aborted it at the same moment; the server refuses the batch.
            if not self.is_aborted(client):
                self.failures.append(f"{client}: let in without a transaction")
            client.is_gone = True
            return
        client.is_open = True
        self.node.topics.partition(*where).append(client.producer, client.tag)

    @precondition(lambda self: any(c.is_free and c.producer for c in self.clients))
    @rule(data=st.data())
    def send_offsets(self, data: st.DataObject) -> None:
        client = self.free(data)
        if client.decision is None:
            self.begin_request(client, self.stage(client))

    async def stage(self, client: Client) -> None:
        assert client.producer is not None
        producer, name = client.producer, client.transactional_id
        transactions = self.node.transactions

        async def stage() -> None:
            await asyncio.sleep(0)
            self.node.groups.stage(producer, "g", client.tag)
            client.is_open = True

        if not client.is_bumping and not client.has_group:
            await transactions.add_offsets(name, *producer, "g")
            client.has_group = True
        await transactions.stage_offsets(name, *producer, "g", stage, may_add=client.is_bumping)

    @precondition(lambda self: any(c.is_free and c.producer for c in self.clients))
    @rule(data=st.data(), is_commit=st.booleans())
    def end(self, data: st.DataObject, is_commit: bool) -> None:
        client = self.free(data)
        if client.is_resuming or client.is_chosen:
            return
        if client.decision is not None:
            is_commit = client.decision  # It repeats its request.
        elif not client.is_open:
            return
        client.decision = is_commit
        self.wanted[client.tag].add(is_commit)
        self.begin_request(client, self.send_end(client, is_commit))

    async def send_end(self, client: Client, is_commit: bool) -> None:
        assert client.producer is not None
        tag, producer = client.tag, client.producer
        client.producer = await self.node.transactions.end(
            client.transactional_id, *producer, is_commit=is_commit, is_bumping=client.is_bumping
        )
        self.answered[tag] = is_commit
        if client.is_bumping:
            for late in (False, True):
                self.late_ends.append((client.transactional_id, producer, late))
        self.begin_next(client)

    def begin_next(self, client: Client) -> None:
        client.tag, client.decision, client.is_resuming = self.new_tag(), None, False
        client.announced, client.has_group, client.is_open = set(), False, False

    @precondition(lambda self: self.late_ends)
    @rule(data=st.data())
    def an_old_end_arrives(self, data: st.DataObject) -> None:
        """Deliver a repeated end of a client that gets new epochs; it must not change anything."""
        late = data.draw(st.sampled_from(self.late_ends))
        self.run(self.deliver(*late))

    async def deliver(self, name: str, producer: TransactionProducer, is_commit: bool) -> None:
        async def ask() -> None:
            with contextlib.suppress(MillstreamError):
                await self.node.transactions.end(
                    name, *producer, is_commit=is_commit, is_bumping=True
                )

        asyncio.get_running_loop().create_task(ask())
        await turns()

    @precondition(lambda self: any(c.is_free and c.producer for c in self.clients))
    @rule(data=st.data())
    def go_on_after_an_error(self, data: st.DataObject) -> None:
        """KIP-360: the client keeps its producer id, and its open transaction is aborted."""
        client = self.free(data)
        if not client.is_chosen and (client.decision is None or client.is_resuming):
            client.decision, client.is_resuming = False, True
            self.begin_request(client, self.reinit(client))

    async def reinit(self, client: Client) -> None:
        before = client.producer
        assert before is not None
        client.producer = await self.node.transactions.init_producer(
            client.transactional_id, TIMEOUT_MS, *before
        )
        if client.producer.id != before.id:  # All ids expired; it is the first again.
            self.overtake_others(client)
        if client.is_open:
            self.answered[client.tag] = False
        self.begin_next(client)

    # Publishers.

    def publishable(self) -> list[Client]:
        return [
            c
            for c in self.clients
            if c.is_free and c.is_open and c.decision is None and not c.is_chosen
        ]

    @rule(
        data=st.data(),
        sequence=st.integers(0, SEQUENCE_MAX),
        prefix=st.sampled_from(PREFIXES),
        is_final=st.booleans(),
    )
    def publish(self, data: st.DataObject, sequence: int, prefix: str, is_final: bool) -> None:
        found = self.publishable()
        clients = data.draw(
            st.lists(
                st.sampled_from(found), unique_by=lambda c: c.transactional_id, max_size=len(IDS)
            )
            if found
            else st.just([])
        )
        for client in clients:
            client.is_chosen = True
            self.wanted[client.tag].add(True)
        chosen = tuple(
            ProposedTransaction(c.transactional_id, c.producer) for c in clients if c.producer
        )
        proposal = PublicationProposal(
            publisher="q", sequence=sequence, chosen=chosen, prefix=prefix, is_final=is_final
        )
        attempt = Attempt(
            proposal,
            frozenset(client.tag for client in clients),
            is_too_late=sequence <= self.answered_sequence,
        )
        self.attempts.append(attempt)
        self.run(self.begin_publishing(attempt))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def publish_again(self, data: st.DataObject) -> None:
        """Repeat a publication: its response was lost, or a duplicate request arrives late."""
        attempt = data.draw(st.sampled_from(self.attempts))
        self.run(self.begin_publishing(attempt))

    async def begin_publishing(self, attempt: Attempt) -> None:
        asyncio.get_running_loop().create_task(self.ask_to_publish(attempt))
        await turns()

    async def ask_to_publish(self, attempt: Attempt) -> None:
        is_first = not attempt.answers
        try:
            answer = await self.node.transactions.publish(attempt.proposal)
        except (*GONE, Unavailable, LogOffline):
            return
        except MillstreamError as error:
            self.failures.append(f"{attempt}: {error!r}")
            return
        sequence = attempt.proposal.sequence
        if not answer.is_repeated:
            if attempt.is_too_late or answer.last_sequence != sequence or not is_first:
                self.failures.append(f"{attempt} was taken for a new one: {answer}")
            self.answered_sequence = max(self.answered_sequence, sequence)
            self.answered |= dict.fromkeys(attempt.tags, True)
        elif answer.last_sequence < sequence:
            self.failures.append(f"{attempt} was taken for a repetition: {answer}")
        attempt.answers.append(answer)
        self.told_sequences.add(answer.last_sequence)

    @rule(
        data=st.data(),
        where=st.sampled_from(PARTITIONS),
        is_cut=st.booleans(),
        is_written_on=st.booleans(),
    )
    def run_a_batch(
        self, data: st.DataObject, where: tuple[str, int], is_cut: bool, is_written_on: bool
    ) -> None:
        """Act as a Spark job: tasks write, a driver publishes, and tasks may write afterwards."""
        made = [Client(name, is_bumping=True) for name in IDS]
        for client in made:
            self.clients.append(client)
            self.begin_request(client, self.init(client))
            if client.producer is not None:
                self.run(self.begin_sending(client, where))
        if is_cut and self.publishable():
            self.lose_power_amid_a_publication(data, where)
        else:
            self.publish(data, self.answered_sequence + 1, "q/", False)
        for client in made:
            if is_written_on and client.is_chosen:
                self.run(self.begin_sending(client, where))

    @rule(sequence=st.integers(0, SEQUENCE_MAX), prefix=st.sampled_from(PREFIXES))
    def give_up(self, sequence: int, prefix: str) -> None:
        async def ask() -> None:
            proposal = PublicationProposal(
                publisher="q", sequence=sequence, prefix=prefix, is_commit=False
            )
            with contextlib.suppress(Unavailable, LogOffline):
                await self.node.transactions.publish(proposal)

        async def begin() -> None:
            asyncio.get_running_loop().create_task(ask())
            await turns()

        self.run(begin())

    # Node faults.

    @rule(is_held=st.booleans())
    def hold_the_disk(self, is_held: bool) -> None:
        self.node.state_log.is_held = is_held
        if not is_held:
            self.run(self.let_go(None))

    @precondition(lambda self: self.node.state_log.waiting)
    @rule()
    def let_one_write_go(self) -> None:
        self.run(self.let_go(1))

    async def let_go(self, count: int | None) -> None:
        self.node.state_log.let_go(count)
        await turns()

    @rule(is_full=st.booleans())
    def fill_the_disk(self, is_full: bool) -> None:
        self.node.state_log.error = DiskFull("no room") if is_full else None

    @rule(where=st.sampled_from(PARTITIONS), is_offline=st.booleans())
    def lose_a_partition(self, where: tuple[str, int], is_offline: bool) -> None:
        error = LogOffline("broken") if is_offline else None
        self.node.topics.partition(*where).error = error

    @rule(is_offline=st.booleans())
    def lose_the_groups(self, is_offline: bool) -> None:
        self.node.groups.error = LogOffline("broken") if is_offline else None

    @rule(seconds=st.sampled_from([1, 10, 31, 250]))
    def wait(self, seconds: int) -> None:
        self.run(self.node.pass_time(seconds))

    @rule(ms=st.sampled_from([-(10**9), 10**9]))
    def set_the_wall_clock(self, ms: int) -> None:
        self.node.clock.jump_wall(ms)

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        survivors = data.draw(st.integers(0, self.node.state_log.waiting))
        self.run(self.node.restart(survivors))

    @precondition(lambda self: self.publishable())
    @rule(data=st.data(), where=st.sampled_from(PARTITIONS))
    def lose_power_amid_a_publication(self, data: st.DataObject, where: tuple[str, int]) -> None:
        """Cut the power while a publication, alone or with others, is being written to disk."""
        self.hold_the_disk(True)
        self.lose_a_partition(where, True)
        self.publish(data, self.answered_sequence + 1, "q/", False)
        self.crash(data)
        self.lose_a_partition(where, False)

    @precondition(lambda self: any(c.is_free and c.is_open for c in self.clients))
    @rule(data=st.data(), is_commit=st.booleans(), where=st.sampled_from(PARTITIONS))
    def lose_power_amid_an_end(
        self, data: st.DataObject, is_commit: bool, where: tuple[str, int]
    ) -> None:
        """Cut the power while a decision is being written and one partition is offline."""
        self.hold_the_disk(True)
        self.lose_a_partition(where, True)
        self.end(data, is_commit)
        self.crash(data)
        self.lose_a_partition(where, False)

    # Invariants.

    def outcomes(self) -> dict[int, set[bool | None]]:
        """Return the outcomes of each tag in all partitions and groups; `None` if it is open."""
        found: dict[int, set[bool | None]] = defaultdict(set)
        for partition in self.node.topics.partitions.values():
            open_tags: dict[int, list[int]] = defaultdict(list)
            for entry in partition.journal:
                if isinstance(entry, Data):
                    open_tags[entry.producer.id].append(entry.tag)
                else:
                    for tag in open_tags.pop(entry.producer.id, []):
                        found[tag].add(entry.is_commit)
            for tags in open_tags.values():
                for tag in tags:
                    found[tag].add(None)
        for tag, is_commit in self.node.groups.ended:
            found[tag].add(is_commit)
        for tags in self.node.groups.staged.values():
            for tag in tags:
                found[tag].add(None)
        return found

    @rule()
    def check_what_is_known_already(self) -> None:
        for tag, found in self.outcomes().items():
            assert len(found - {None}) <= 1, f"{tag} ended both ways"
            self.check_outcome(tag, found - {None})

    def check_outcome(self, tag: int, found: set[bool | None]) -> None:
        if True in found:
            assert True in self.wanted[tag], f"{tag} was committed, and nobody asked for that"
        if tag in self.answered and found:
            assert found == {self.answered[tag]}, f"{tag} was answered {self.answered[tag]}"

    def check_publications(self, found: dict[int, set[bool | None]]) -> None:
        committed: dict[int, Attempt] = {}
        for attempt in self.attempts:
            outcomes = {True in found[tag] for tag in attempt.tags}
            assert len(outcomes) <= 1, f"{attempt} was published in part"
            if True in outcomes:
                assert not attempt.is_too_late, f"{attempt} was published late"
                sequence = attempt.proposal.sequence
                other = committed.setdefault(sequence, attempt)
                assert other is attempt, f"{other} and {attempt} were published"
        empty = {one.proposal.sequence for one in self.attempts if not one.tags}
        known = committed.keys() | empty | {NO_SEQUENCE}
        assert self.told_sequences <= known, "what was said to be published is there"

    def teardown(self) -> None:
        try:
            if hasattr(self, "node"):
                self.run(self.heal())
                self.check_publications(self.outcomes())
                for tag, found in self.outcomes().items():
                    assert None not in found, f"{tag} hangs"
                    assert len(found) == 1, f"{tag} ended both ways"
                    self.check_outcome(tag, found)
                self.run(self.stop())
        finally:
            self.loop.close()

    async def heal(self) -> None:
        """Remove all faults and send no more requests: every transaction must end."""
        self.node.state_log.error = self.node.groups.error = None
        for partition in self.node.topics.partitions.values():
            partition.error = None
        self.node.state_log.is_held = False
        self.node.state_log.let_go()
        await self.node.restart()
        await self.node.pass_time(TIMEOUT_MS / 1000 + 10)
        for name in IDS:
            await self.node.transactions.init_producer(name, TIMEOUT_MS)
        nothing = PublicationProposal(publisher="q", sequence=0, is_commit=False)
        self.told_sequences.add((await self.node.transactions.publish(nothing)).last_sequence)

    async def stop(self) -> None:
        await self.node.transactions.close()


def test_errors_that_a_client_repeats_are_those_that_change_nothing() -> None:
    assert issubclass(ConcurrentTransaction, Unavailable)


TestTransactions = TransactionsMachine.TestCase
TestTransactions.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
