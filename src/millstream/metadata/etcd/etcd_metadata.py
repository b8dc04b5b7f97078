"""Metadata store of a cluster, in etcd.

All reads are linearizable: no decision rests on the state of a member that was cut off. Every
response is compared with the highest revision that was seen before its request: if it is lower,
somebody restored a backup of etcd, and nothing is done any more. The highest revision is also kept
in a file of the node, so that a backup that was restored while the node was down is found when it
starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from itertools import chain
from typing import Any, Self, TypeVar

from millstream.clock import Clock, SystemClock
from millstream.config.schema import CLUSTER_NAME_WORDS, ClusterConfig, is_cluster_name
from millstream.errors import (
    InvalidConfig,
    InvalidRequest,
    LeaseExpired,
    MillstreamError,
    StorageFailed,
    Unavailable,
)
from millstream.metadata.counters import MetadataCounters
from millstream.metadata.etcd.change_feed import ChangeFeed
from millstream.metadata.etcd.endpoint import EtcdEndpoint
from millstream.metadata.etcd.gateway import (
    EtcdGateway,
    EtcdMemberStatus,
    EtcdRefused,
    EtcdUser,
    GrpcCode,
    Repeat,
)
from millstream.metadata.etcd.messages import (
    EmptyResponse,
    GrantResponse,
    KeepAliveResponse,
    RangeResponse,
    TransactionResponse,
    entries_of,
    get_request,
    page_request,
    range_end,
    transaction_request,
)
from millstream.metadata.etcd.seen_revision import RESTORED_ADVICE, SeenRevision
from millstream.metadata.interface import (
    Condition,
    Lease,
    MetadataChange,
    MetadataEntry,
    MetadataList,
    Watch,
    check_key,
    check_transaction,
)
from millstream.metadata.metadata_checkpoint import MetadataCheckpoint
from millstream.metadata.watches import Watches
from millstream.storage.disk.executor import Executor, ThreadExecutor
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem, join

logger = logging.getLogger(__name__)

T = TypeVar("T")

OPERATIONS_MAX = 128
"""Changes, and conditions, that etcd accepts in one transaction by default."""

TRANSACTION_SIZE_MAX = 1_400_000
"""Bytes of keys and values in one transaction: the default of etcd, 1.5 MiB, minus overhead."""

PAGE_ENTRIES = 500
"""Entries of one response to a list."""

TIMEOUT_MS = 2_000
WAIT_SECONDS = 1.0
"""Pause between two attempts of a read that waits for etcd."""

ETCD_CHECKPOINT_FILE = "etcd-checkpoint"
"""File of a data directory with the highest revision of etcd that the node has seen."""


class EtcdMetadata:
    """Metadata that all nodes of a cluster share. Made by `open`."""

    def __init__(
        self,
        gateway: EtcdGateway,
        cluster_id: str,
        *,
        seen: SeenRevision,
        clock: Clock,
        counters: MetadataCounters,
    ) -> None:
        if not is_cluster_name(cluster_id):
            raise InvalidConfig(f"cluster id must be {CLUSTER_NAME_WORDS}, got {cluster_id!r}")
        self.cluster_id = cluster_id
        self.counters = counters
        counters.watch_lag_seconds = lambda: self.watch_lag_seconds
        self._gateway = gateway
        self._prefix = f"/millstream/{cluster_id}/".encode()
        self._seen = seen
        self._clock = clock
        self._failed: StorageFailed | None = None
        self._watches = Watches()
        self._feed: ChangeFeed | None = None
        self._following: asyncio.Task[None] | None = None
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self.on_wait: Callable[[str | None], None] | None = None
        """Set while a node starts: reads then wait as long as etcd cannot be reached. It is told
        why, and `None` when that is over."""

    # Opening and closing.

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        cluster_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        user: str | None = None,
        password_file: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        checkpoint_path: str | None = None,
        is_loss_accepted: bool = False,
        filesystem: Filesystem | None = None,
        background: Executor | None = None,
        clock: Clock | None = None,
    ) -> EtcdMetadata:
        """Connect to etcd.

        `checkpoint_path` is the file in which the highest revision is kept. Raises `CorruptData` if
        etcd is older than that, unless `is_loss_accepted`; `InvalidConfig` if etcd has a version
        that must not be used or refuses the user; `Unavailable` if it cannot be reached.
        """
        counters = MetadataCounters()
        gateway = EtcdGateway(
            endpoints,
            timeout_s=timeout_ms / 1000,
            tls=_tls_context(endpoints, ca_file, cert_file, key_file),
            user=EtcdUser(user, password_file or "") if user is not None else None,
            counters=counters,
        )
        checkpoint = None
        if checkpoint_path is not None:
            checkpoint = MetadataCheckpoint(filesystem or OsFilesystem(), checkpoint_path)
        metadata = cls(
            gateway,
            cluster_id,
            seen=SeenRevision(
                checkpoint, background or ThreadExecutor(1, name="millstream-etcd-checkpoint")
            ),
            clock=clock or SystemClock(),
            counters=counters,
        )
        try:
            await metadata._open(is_loss_accepted=is_loss_accepted)
        except BaseException:
            await metadata.close()
            raise
        return metadata

    @classmethod
    async def open_configured(
        cls, config: ClusterConfig, data: str, *, is_loss_accepted: bool = False
    ) -> EtcdMetadata:
        """Connect to the etcd of a node's cluster; `data` is the data directory of the node."""
        return await cls.open(
            config.etcd,
            config.name,
            timeout_ms=config.etcd_timeout_ms,
            user=config.etcd_user,
            password_file=config.etcd_password_file,
            ca_file=config.etcd_ca_file,
            cert_file=config.etcd_cert_file,
            key_file=config.etcd_key_file,
            checkpoint_path=join(data, ETCD_CHECKPOINT_FILE),
            is_loss_accepted=is_loss_accepted,
        )

    async def _open(self, *, is_loss_accepted: bool) -> None:
        await self._gateway.check_versions()
        listed = await self._list("")
        await self._seen.start(listed.revision, is_loss_accepted=is_loss_accepted)
        self._feed = ChangeFeed(
            self._gateway,
            self._prefix,
            listed,
            list_all=lambda: self._list(""),
            probe=self._probe,
            on_change=lambda change: self._watches.notify([change]),
            on_revision=self._seen.see,
            clock=self._clock,
            counters=self.counters,
        )
        self._gateway.on_failure = self._leave
        self._following = asyncio.ensure_future(self._feed.run())
        self._following.add_done_callback(self._stopped_following)

    async def close(self) -> None:
        """End watches and connections, after all changes in flight. Leases are left to expire."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._in_flight:
            await asyncio.gather(*self._in_flight, return_exceptions=True)
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
        self._watches.clear()
        await self._gateway.close()
        await self._seen.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # State.

    @property
    def failure(self) -> StorageFailed | None:
        """The error after which no calls are accepted until the store is opened again."""
        return self._failed

    @property
    def revision(self) -> int:
        """The highest revision that this node has seen."""
        return self._seen.revision

    @property
    def watch_lag_seconds(self) -> float:
        """How long a change that is known to exist has not arrived at the watches."""
        return self._feed.lag_seconds if self._feed is not None else 0.0

    async def members(self) -> Sequence[EtcdMemberStatus]:
        """Return the state of the member at each endpoint."""
        return await self._gateway.statuses()

    # Reading.

    async def get(self, key: str) -> MetadataEntry | None:
        """Return the entry of `key`; `None` if there is none."""
        return await self.counters.measure("get", self._clock, self._get(key))

    async def _get(self, key: str) -> MetadataEntry | None:
        self._check_usable()
        request = get_request(self._prefix + check_key(key).encode())
        seen = self._seen.revision
        response = await self._read(request)
        self._check_header(response.header.revision, seen)
        return next(iter(self._entries(response)), None)

    async def list(self, prefix: str) -> MetadataList:
        """Return all entries whose keys start with `prefix`, sorted by key."""
        return await self.counters.measure("list", self._clock, self._list(prefix))

    async def _list(self, prefix: str) -> MetadataList:
        self._check_usable()
        while True:
            try:
                return await self._list_pages(prefix)
            except EtcdRefused as error:
                if not error.is_compacted:  # The revision of the first page, before the last one.
                    raise

    async def _list_pages(self, prefix: str) -> MetadataList:
        start = self._prefix + prefix.encode()
        end = range_end(start)
        seen = self._seen.revision
        pages = []
        revision = 0
        while True:
            request = page_request(start, end, limit=PAGE_ENTRIES, revision=revision)
            response = await self._read(request)
            self._check_header(response.header.revision, seen)
            revision = revision or response.header.revision
            pages.append(self._entries(response))
            if not response.more or not response.kvs:
                return MetadataList([*chain.from_iterable(pages)], revision)
            start = response.kvs[-1].key + b"\0"

    async def _probe(self) -> None:
        """Read one key that does not exist."""
        seen = self._seen.revision
        response = await self._read(get_request(self._prefix))
        self._check_header(response.header.revision, seen)

    async def _read(self, request: Mapping[str, Any]) -> RangeResponse:
        is_waiting = False
        while True:
            try:
                response = await self._gateway.call(
                    "/v3/kv/range", request, RangeResponse, repeat=Repeat.READ
                )
            except Unavailable as error:
                if self.on_wait is None or self._is_closed:
                    raise
                logger.warning("%s; trying again", error)
                is_waiting = True
                self.on_wait(str(error))
                await asyncio.sleep(WAIT_SECONDS)
            else:
                if is_waiting and self.on_wait is not None:
                    self.on_wait(None)
                return response

    def _entries(self, response: RangeResponse) -> Sequence[MetadataEntry]:
        entries = tuple(entries_of(response, self._prefix))
        if self._feed is not None and entries:
            self._feed.expect(max(entry.revision for entry in entries))
        return entries

    # Changing.

    async def transact(
        self,
        *,
        compares: Sequence[Condition] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
        lease: Lease | None = None,
        unbound: Collection[str] = (),
    ) -> int | None:
        """Put and delete all of these, or none; `None` if one of `compares` does not hold.

        Raises `InvalidRequest` for more than 128 changes or conditions, or 1.4 MB: the limits of
        etcd. A transaction is atomic, so it is not split.
        """
        self._check_usable()
        puts = dict(puts or {})
        deletes = frozenset(deletes)
        check_transaction(puts, deletes)
        _check_limits(compares, puts, deletes)
        work = self._transact(tuple(compares), puts, deletes, lease, frozenset(unbound))
        return await self.counters.measure("transact", self._clock, self._uncancelled(work))

    async def _transact(
        self,
        compares: Sequence[Condition],
        puts: Mapping[str, bytes],
        deletes: Collection[str],
        lease: Lease | None,
        unbound: Collection[str],
    ) -> int | None:
        number = lease.id if lease is not None else 0
        request = transaction_request(
            self._prefix, compares, puts, deletes, lease=number, unbound=unbound
        )
        seen = self._seen.revision
        try:
            response = await self._gateway.call(
                "/v3/kv/txn", request, TransactionResponse, repeat=Repeat.NEVER
            )
        except EtcdRefused as error:
            if error.code == GrpcCode.NOT_FOUND and lease is not None:
                raise LeaseExpired(f"lease {lease.id} has expired or was revoked") from error
            if error.code == GrpcCode.INVALID_ARGUMENT:
                raise InvalidRequest(str(error)) from error
            raise
        self._check_header(response.header.revision, seen)
        if not response.succeeded:
            return None
        if puts and self._feed is not None:
            self._feed.expect(response.header.revision)
        return response.header.revision

    async def _uncancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work in a task of its own, which is completed even if the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._in_flight.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.exception()  # The caller may be gone; then nobody asks for it.

    # Leases.

    async def grant(self, ttl_seconds: int) -> EtcdLease:
        """Return a new lease. If its response is lost, it expires without having been used."""
        if ttl_seconds < 1:
            raise InvalidRequest(f"the TTL of a lease must be at least 1 s, got {ttl_seconds}")
        self._check_usable()
        return await self.counters.measure("grant", self._clock, self._grant(ttl_seconds))

    async def _grant(self, ttl_seconds: int) -> EtcdLease:
        response = await self._gateway.call(
            "/v3/lease/grant", {"TTL": str(ttl_seconds)}, GrantResponse, repeat=Repeat.READ
        )
        return EtcdLease(self, response.id, response.ttl)

    async def renew(self, lease: EtcdLease) -> None:
        """Renew a lease: see `EtcdLease.renew`."""
        self._check_usable()
        try:
            await self.counters.measure("renew", self._clock, self._renew(lease))
        except MillstreamError:
            self.counters.failed_renewals += 1
            raise

    async def _renew(self, lease: EtcdLease) -> None:
        try:
            response = await self._gateway.call(
                "/v3/lease/keepalive",
                {"ID": str(lease.id)},
                KeepAliveResponse,
                repeat=Repeat.IDEMPOTENT,
            )
        except EtcdRefused as error:
            if error.code != GrpcCode.NOT_FOUND:
                raise
            raise LeaseExpired(f"lease {lease.id} has expired or was revoked") from error
        if response.result.ttl <= 0:
            raise LeaseExpired(f"lease {lease.id} has expired or was revoked")

    async def revoke(self, lease: EtcdLease) -> None:
        """Revoke a lease: see `EtcdLease.revoke`."""
        self._check_usable()
        work = self._uncancelled(self._revoke(lease))
        await self.counters.measure("revoke", self._clock, work)

    async def _revoke(self, lease: EtcdLease) -> None:
        try:
            await self._gateway.call(
                "/v3/lease/revoke",
                {"ID": str(lease.id)},
                EmptyResponse,
                repeat=Repeat.IDEMPOTENT,
            )
        except EtcdRefused as error:
            if error.code != GrpcCode.NOT_FOUND:
                raise

    # Watching.

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> Watch:
        """Call back on the loop for each later change whose key starts with `prefix`."""
        return self._watches.add(prefix, callback, since=self._seen.revision)

    def _stopped_following(self, task: asyncio.Task[None]) -> None:
        """Accept no more calls if changes are not followed any more, because of a bug."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("changes in etcd are not followed any more", exc_info=error)
            self._failed = StorageFailed(f"changes in etcd are not followed any more: {error!r}")

    def _leave(self, endpoint: EtcdEndpoint) -> None:
        if self._feed is not None:
            self._feed.leave(endpoint)

    # Revisions.

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StorageFailed("the metadata in etcd is closed")
        if self._failed is not None:
            raise StorageFailed(f"the metadata in etcd cannot be used: {self._failed}")

    def _check_header(self, revision: int, seen: int) -> None:
        """Raise `StorageFailed` if a response is older than what was seen before its request."""
        if revision < seen:
            self._failed = StorageFailed(
                f"etcd has revision {revision}, but had {seen} before: {RESTORED_ADVICE}"
            )
            raise self._failed
        self._seen.see(revision)


class EtcdLease:
    """A lease of an `EtcdMetadata`."""

    def __init__(self, metadata: EtcdMetadata, number: int, ttl_seconds: int) -> None:
        self.id = number
        self.ttl_seconds = ttl_seconds
        self._metadata = metadata

    async def renew(self) -> None:
        """Extend the lease to `ttl_seconds` from now. Raises `LeaseExpired` if it is gone."""
        await self._metadata.renew(self)

    async def revoke(self) -> None:
        """End the lease now, and delete its keys."""
        await self._metadata.revoke(self)


def _check_limits(
    compares: Sequence[Condition], puts: Mapping[str, bytes], deletes: Collection[str]
) -> None:
    """Raise `InvalidRequest` if etcd would refuse a transaction of this size."""
    for name, count in (("changes", len(puts) + len(deletes)), ("conditions", len(compares))):
        if count > OPERATIONS_MAX:
            raise InvalidRequest(
                f"a transaction must have at most {OPERATIONS_MAX} {name}, got {count}"
            )
    size = sum(len(key) + len(value) for key, value in puts.items()) + sum(map(len, deletes))
    if size > TRANSACTION_SIZE_MAX:
        raise InvalidRequest(
            f"a transaction must have at most {TRANSACTION_SIZE_MAX} bytes, got {size}"
        )


def _tls_context(
    endpoints: Sequence[str], ca_file: str | None, cert_file: str | None, key_file: str | None
) -> ssl.SSLContext | None:
    if not any(url.startswith("https:") for url in endpoints):
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(f"the CA file of etcd cannot be used: {ca_file}: {error}") from error
    if cert_file is not None:
        try:
            context.load_cert_chain(cert_file, key_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig(
                f"the certificate for etcd cannot be used: {cert_file}, {key_file}: {error}"
            ) from error
    return context
