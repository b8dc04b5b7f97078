"""A dictionary as model of every `Metadata`, driven by Hypothesis.

Subclass `MetadataMachine` and give it `open_store`; `LeasedMachine` adds leases and a second node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.metadata.interface import (
    ABSENT,
    Compare,
    CompareCreated,
    Condition,
    Lease,
    LeasedMetadata,
    Metadata,
    MetadataChange,
)

T = TypeVar("T")

KEYS = st.sampled_from(["a", "a/b", "a/c", "b", "b/", "~"])


class Row(NamedTuple):
    value: bytes
    revision: int
    created: int


class MetadataMachine(RuleBasedStateMachine):
    """Drives one store and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model: dict[str, Row] = {}
        self.expected: list[MetadataChange] = []
        self.heard: list[MetadataChange] = []
        self.has_more = asyncio.Event()
        self.metadata = self.run(self.open_store())
        self.metadata.watch("", self.hear)
        self.revision = self.metadata.revision  # Others may have used the store before.

    async def open_store(self) -> Metadata:
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def hear(self, change: MetadataChange) -> None:
        self.heard.append(change)
        self.has_more.set()

    @rule(
        puts=st.dictionaries(KEYS, st.binary(max_size=8), max_size=3),
        deletes=st.sets(KEYS, max_size=2),
        compared=st.dictionaries(KEYS, st.booleans(), max_size=2),
        is_stale=st.booleans(),
    )
    def transact(
        self,
        puts: dict[str, bytes],
        deletes: set[str],
        compared: dict[str, bool],
        is_stale: bool,
    ) -> None:
        deletes -= puts.keys()
        compares = self.conditions(compared, stale=1 if is_stale else 0)
        revision = self.run(self.metadata.transact(compares=compares, puts=puts, deletes=deletes))
        if compares and is_stale:
            assert revision is None
        else:
            assert revision is not None
            self.apply(revision, puts, deletes)

    def conditions(self, compared: dict[str, bool], *, stale: int) -> list[Condition]:
        conditions: list[Condition] = []
        for key, is_creation in compared.items():
            row = self.model.get(key, Row(b"", ABSENT, ABSENT))
            if is_creation:
                conditions.append(CompareCreated(key, row.created + stale))
            else:
                conditions.append(Compare(key, row.revision + stale))
        return conditions

    def apply(self, revision: int, puts: dict[str, bytes], deletes: set[str]) -> None:
        """Apply to the model what the store applied."""
        changes: dict[str, bytes | None] = {**dict.fromkeys(deletes & self.model.keys()), **puts}
        assert revision > self.revision or (not changes and revision == self.revision)
        self.revision = revision
        for key, value in sorted(changes.items()):
            old = self.model.pop(key, None)
            if value is not None:
                self.model[key] = Row(value, revision, old.created if old else revision)
            self.expected.append(MetadataChange(key, value, revision))

    @rule()
    def reopen(self) -> None:
        self.the_watch_hears_it_all()
        self.run(self.metadata.close())
        self.metadata = self.run(self.open_store())
        self.metadata.watch("", self.hear)

    @rule(prefix=KEYS)
    def listing(self, prefix: str) -> None:
        listed = self.run(self.metadata.list(prefix))
        wanted = [(key, *self.model[key]) for key in sorted(self.model) if key.startswith(prefix)]
        assert list(listed) == wanted
        assert listed.revision == self.metadata.revision == self.revision

    @rule(key=KEYS)
    def getting(self, key: str) -> None:
        row = self.model.get(key)
        assert self.run(self.metadata.get(key)) == (None if row is None else (key, *row))

    @invariant()
    def the_watch_hears_it_all(self) -> None:
        self.wait_for_changes(len(self.expected))
        assert self.heard == self.expected

    def wait_for_changes(self, count: int) -> None:
        async def wait() -> None:
            while len(self.heard) < count:
                self.has_more.clear()
                await self.has_more.wait()

        self.run(asyncio.wait_for(wait(), 30))

    def teardown(self) -> None:
        self.run(self.metadata.close())
        self.loop.close()


class LeasedMachine(MetadataMachine):
    """Adds leases, which are revoked at any time."""

    metadata: LeasedMetadata

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.bound: dict[str, int] = {}
        super().__init__()

    def apply(self, revision: int, puts: dict[str, bytes], deletes: set[str]) -> None:
        for key in {*puts, *deletes}:
            self.bound.pop(key, None)
        super().apply(revision, puts, deletes)

    @rule()
    def grant(self) -> None:
        self.leases.append(self.run(self.metadata.grant(600)))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), puts=st.dictionaries(KEYS, st.binary(max_size=8), min_size=1, max_size=3))
    def bind(self, data: st.DataObject, puts: dict[str, bytes]) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        revision = self.run(self.metadata.transact(puts=puts, lease=lease))
        assert revision is not None
        self.apply(revision, puts, set())
        self.bound.update(dict.fromkeys(puts, lease.id))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.leases.remove(lease)
        if keys := {key for key, bound in self.bound.items() if bound == lease.id}:
            heard = len(self.heard)
            self.run(lease.revoke())
            self.wait_for_changes(heard + len(keys))
            self.apply(self.heard[-1].revision, {}, keys)
        else:
            self.run(lease.revoke())

    @rule()
    def reopen(self) -> None:
        self.the_watch_hears_it_all()
        for lease in list(self.leases):
            self.run(lease.renew())
        self.leases.clear()  # A lease belongs to its connection; its keys stay for ten minutes.
        super().reopen()
