"""Metadata in SQLite against a dictionary as model."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millstream.metadata.interface import Compare, MetadataChange
from millstream.metadata.sqlite import SqliteMetadata
from millstream.testing.clocks.seeded_background import SeededBackground

EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200


class MetadataMachine(RuleBasedStateMachine):
    """Drives one file and its model."""

    KEYS = st.sampled_from(["a", "a/b", "a/c", "b", "b/", "~"])

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model: dict[str, tuple[bytes, int]] = {}
        self.heard: dict[str, tuple[bytes, int]] = {}
        self.revision = 0
        self.directory = Path(tempfile.mkdtemp(prefix="millstream-metadata-"))
        self.open()

    def open(self) -> None:
        self.metadata = SqliteMetadata(
            str(self.directory / "meta.db"), background=SeededBackground(1, width=1)
        )
        self.loop.run_until_complete(self.metadata.open())
        self.metadata.watch("", self.hear)

    def hear(self, change: MetadataChange) -> None:
        if change.value is None:
            del self.heard[change.key]
        else:
            self.heard[change.key] = (change.value, change.revision)

    @rule(
        puts=st.dictionaries(KEYS, st.binary(max_size=8), max_size=3),
        deletes=st.sets(KEYS, max_size=2),
        compared=st.sets(KEYS, max_size=2),
        is_stale=st.booleans(),
    )
    def transact(self, puts, deletes, compared, is_stale) -> None:
        deletes -= puts.keys()
        compares = [
            Compare(key, self.model.get(key, (b"", 0))[1] + (1 if is_stale else 0))
            for key in compared
        ]
        revision = self.loop.run_until_complete(
            self.metadata.transact(compares=compares, puts=puts, deletes=deletes)
        )
        if compares and is_stale:
            assert revision is None
            return
        self.revision += 1
        assert revision == self.revision
        for key in deletes:
            self.model.pop(key, None)
        self.model.update({key: (value, self.revision) for key, value in puts.items()})

    @rule()
    def reopen(self) -> None:
        self.loop.run_until_complete(self.metadata.close())
        self.open()

    @rule(prefix=KEYS)
    def listing(self, prefix: str) -> None:
        found = self.loop.run_until_complete(self.metadata.list(prefix))
        wanted = [(key, *self.model[key]) for key in sorted(self.model) if key.startswith(prefix)]
        assert [tuple(entry) for entry in found] == wanted

    @invariant()
    def the_watch_knows_it_all(self) -> None:
        assert self.heard == self.model

    def teardown(self) -> None:
        self.loop.run_until_complete(self.metadata.close())
        self.loop.close()
        for file in self.directory.iterdir():
            file.unlink()
        self.directory.rmdir()


TestMetadataMachine = MetadataMachine.TestCase
TestMetadataMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
