"""Membership of this node: its lease, its registration, and its belief in both.

    grant lease ─► draw a token ────────► create nodes/<id>, put lives/<id> ─► renew, renew
                   store it durably in    waits while the former life is         │
                   the directory          there                            lease expired:
                                                                           a new life begins

A life ends when the lease does: the node may have been replaced everywhere. It then registers
again, with a new broker epoch, and everything that depended on the old one is told (`on_life`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable

import msgspec

from millstream.clock import Clock
from millstream.cluster.control.adoption_row import (
    ADOPTING_KEY,
    decode_adoption,
    describe_adoption,
)
from millstream.cluster.control.node_identity import IdentityFile
from millstream.cluster.control.node_row import NodeRow, encode_node, life_key, node_key
from millstream.cluster.lease import LeaseBelief
from millstream.cluster.life import begin_life, decode_life, encode_life
from millstream.errors import (
    LeaseExpired,
    MillstreamError,
    OutcomeUnknown,
    StorageFailed,
    Unavailable,
)
from millstream.metadata.interface import ABSENT, Compare, CompareCreated, Lease, LeasedMetadata
from millstream.storage.disk.executor import Executor

logger = logging.getLogger(__name__)

RENEWALS_PER_TTL = 4
"""How often a lease is renewed in its time to live: a lost renewal or two do no harm."""

RETRY_SECONDS = 0.5
"""Time between attempts while the store cannot be reached, or the former life is still there."""


class Membership:
    """The registration of one node."""

    def __init__(
        self,
        metadata: LeasedMetadata,
        node_id: int,
        *,
        ttl_seconds: int,
        identity_file: IdentityFile,
        background: Executor,
        clock: Clock,
        draw_token: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.node_id = node_id
        self.belief = LeaseBelief(ttl_seconds)
        self.broker_epoch = 0
        """The broker epoch of this life; 0 before the first."""
        self.lease: Lease | None = None
        self.on_life: Callable[[int], None] = lambda _: None
        """Called with the broker epoch when a life begins; everything of the former one is void."""
        self.problem: str | None = "not registered yet"
        """Why the node does not take part in the cluster now, if so."""
        self.failed_renewals = 0
        self.registered_at = float("-inf")
        """When the registration was last known to be valid, by the monotonic clock."""
        self._metadata = metadata
        self._ttl_seconds = ttl_seconds
        self._identity_file = identity_file
        self._background = background
        self._clock = clock
        self._draw_token = draw_token
        self._row: NodeRow | None = None
        self._task: asyncio.Task[None] | None = None

    async def wait_for_former_life(self, row: NodeRow) -> None:
        """Wait until the node is not registered, as `row` or otherwise.

        From then on nobody can put a life of it into an ISR, until it registers.
        """
        self._row = row
        key = node_key(self.node_id)
        while True:
            try:
                if await self._metadata.get(key) is None:
                    return
                await self._explain_wait(key)
            except MillstreamError as error:
                self._report(f"cannot register in the metadata store: {error}")
            await asyncio.sleep(RETRY_SECONDS)

    async def start(self, row: NodeRow) -> None:
        """Register, and keep the registration. Returns when the node is registered.

        Waits as long as the store cannot be reached, or has a former life of the node.
        """
        self._row = row
        await self._begin_life(is_first=True)
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Give up the registration: others need not wait for the lease to expire."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self.belief.lost()
        if self.lease is not None:
            try:
                await self.lease.revoke()
            except MillstreamError as error:
                logger.warning("the lease was not given up, and expires by itself: %s", error)
            self.lease = None

    def leading_life(self) -> int | None:
        """Return the broker epoch in which the node may lead; None without a valid lease."""
        return self.broker_epoch if self.belief.is_valid(self._clock.monotonic()) else None

    def seconds_without_quorum(self) -> float:
        """Return for how long the node has not believed in its lease; 0 while it does."""
        now = self._clock.monotonic()
        if self.belief.is_valid(now) or self.broker_epoch == 0:
            return 0.0
        return now - self.registered_at

    async def announce_stop(self) -> None:
        """Let the controller know that the node is about to stop: it gets no new leaderships."""
        if self._row is not None and self.lease is not None:
            self._row = msgspec.structs.replace(self._row, is_stopping=True)
            await self._put_row()

    # Registering.

    async def _begin_life(self, *, is_first: bool) -> None:
        while True:
            try:
                if await self._register():
                    self.problem = None
                    return
            except StorageFailed as error:
                if is_first:
                    raise
                # The node leads nothing and says so. A full disk may have space again.
                self._report(f"cannot register again: {error}")
            except MillstreamError as error:
                self._report(f"cannot register in the metadata store: {error}")
            await asyncio.sleep(RETRY_SECONDS)

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem

    async def _store_tokens(self, tokens: tuple[str, ...]) -> None:
        try:
            await self._background.run(lambda: self._identity_file.store_tokens(tokens))
        except OSError as error:
            raise StorageFailed(f"the identity of the node was not stored: {error}") from error

    async def check_last_life(self) -> None:
        """Raise `UnknownFormat` if a later release has recorded the last life of this node."""
        last = await self._metadata.get(life_key(self.node_id))
        if last is not None:
            decode_life(last.value)

    async def _register(self) -> bool:
        """Register once; return False if the former life of the node is still there."""
        assert self._row is not None, "the node was started"
        sent_at = self._clock.monotonic()
        lease = await self._metadata.grant(self._ttl_seconds)
        key, record_key = node_key(self.node_id), life_key(self.node_id)
        last = await self._metadata.get(record_key)
        life = begin_life(
            None if last is None else decode_life(last.value),
            ABSENT if last is None else last.revision,
            self._identity_file.tokens,
            self._draw_token(),
        )
        try:
            await self._store_tokens(life.tokens)
        except StorageFailed:
            await self._revoke(lease)
            raise
        row = msgspec.structs.replace(
            self._row, broker_epoch=0, continuous_since=life.record.since, is_stopping=False
        )
        try:
            revision = await self._metadata.transact(
                compares=[
                    CompareCreated(key, ABSENT),
                    Compare(record_key, ABSENT if last is None else last.revision),
                    Compare(ADOPTING_KEY, ABSENT),
                ],
                puts={key: encode_node(row), record_key: encode_life(life.record)},
                lease=lease,
                unbound=[record_key],
            )
        except OutcomeUnknown:
            # If it was made, it is gone with this lease, and the next attempt makes another one.
            await self._revoke(lease)
            raise
        if revision is None:
            await self._revoke(lease)
            await self._explain_wait(key)
            return False
        self._row = msgspec.structs.replace(
            row, broker_epoch=revision, continuous_since=life.record.continuous_since(revision)
        )
        self.broker_epoch = revision
        self.lease = lease
        self.belief.renewed(sent_at)
        self.registered_at = sent_at
        logger.info("registered as node %d with broker epoch %d", self.node_id, revision)
        self.on_life(revision)
        return True

    async def _put_row(self) -> bool:
        assert self._row is not None
        key = node_key(self.node_id)
        revision = await self._metadata.transact(
            compares=[CompareCreated(key, self.broker_epoch)],
            puts={key: encode_node(self._row)},
            lease=self.lease,
        )
        return revision is not None

    async def _explain_wait(self, key: str) -> None:
        adopting = await self._metadata.get(ADOPTING_KEY)
        if adopting is not None:
            self.problem = describe_adoption(decode_adoption(ADOPTING_KEY, adopting.value))
            logger.warning("%s", self.problem)
            return
        entry = await self._metadata.get(key)
        if entry is None:
            return
        row = msgspec.json.decode(entry.value, type=NodeRow)
        assert self._row is not None
        if row.directory != self._row.directory:
            host, port = row.peer
            self._report(
                f"node id {self.node_id} is registered by another node, at {host}:{port}: stop that"
                " one, or give this one another node.id"
            )
        else:
            self._report(
                f"node {self.node_id} is still registered by its former life; its lease expires"
                f" within {self._ttl_seconds} s"
            )

    async def _revoke(self, lease: Lease) -> None:
        try:
            await lease.revoke()
        except (Unavailable, OutcomeUnknown) as error:
            logger.warning("a lease was not given up, and expires by itself: %s", error)

    # Keeping.

    async def _keep(self) -> None:
        while True:
            assert self.lease is not None
            await asyncio.sleep(self.lease.ttl_seconds / RENEWALS_PER_TTL)
            try:
                await self._renew(self.lease)
            except Exception:  # Else the node would leave the cluster, and never come back.
                self.failed_renewals += 1
                logger.exception("the lease of node %d was not renewed", self.node_id)

    async def _renew(self, lease: Lease) -> None:
        sent_at = self._clock.monotonic()
        try:
            await lease.renew()
        except LeaseExpired:
            logger.warning("the lease of node %d expired; it registers again", self.node_id)
            self.belief.lost()
            self.problem = "the lease of the node has expired"
            await self._begin_life(is_first=False)
        except MillstreamError as error:
            self.failed_renewals += 1
            if not self.belief.is_valid(self._clock.monotonic()):
                self.problem = f"the lease cannot be renewed: {error}"
        else:
            self.problem = None
            self.belief.renewed(sent_at)
            self.registered_at = sent_at
