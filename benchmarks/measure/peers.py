"""Other servers that do the same work: started when first needed, stopped at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self


class PeerMissing(Exception):
    """A peer is not available, or failed. The message has the reason and the remedy."""


class PeerServer(Protocol):
    """A peer that runs on this machine."""

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""

    @property
    def version(self) -> str:
        """What it calls itself, with its version and the settings that matter."""

    def cpu_seconds(self) -> float:
        """CPU time of its process and all child processes."""


Start = Callable[[Path], AbstractContextManager[PeerServer]]
"""Runs a peer with its data in a folder that does not exist yet; raises `PeerMissing`."""


class Peers:
    """The peers of one run. One that is not available is tried only once.

    The first word of a peer's name is what `--peers` calls it, so that one product can be there
    more than once, as a server for each setting that is fixed when it starts.
    """

    def __init__(self, starts: Mapping[str, Start], asked: Collection[str], folder: Path) -> None:
        self._starts = starts
        self._asked = asked
        self._folder = folder.resolve()  # A server has a directory of its own to be in.
        self._running: dict[str, PeerServer] = {}
        self._missing: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def is_asked(self, name: str) -> bool:
        """Whether this peer was requested."""
        return name.split(maxsplit=1)[0] in self._asked

    def server(self, name: str) -> PeerServer:
        """Return a peer that runs; raise `PeerMissing` where there is none."""
        if name in self._missing:
            raise PeerMissing(self._missing[name])
        if name not in self._running:
            try:
                started = self._starts[name](self._folder / name.replace(" ", "-"))
                self._running[name] = self._stack.enter_context(started)
            except PeerMissing as error:
                self.lose(name, str(error))
                raise
        return self._running[name]

    def lose(self, name: str, reason: str) -> None:
        """Record why a peer is not available any more."""
        self._missing[name] = reason

    def facts(self) -> dict[str, str]:
        """Say which peers were there, and which were not."""
        names = dict.fromkeys(name.split()[0] for name in self._starts)
        not_asked = [name for name in names if name not in self._asked]
        return (
            {f"peer {name}": server.version for name, server in self._running.items()}
            | {f"peer {name}": f"missing: {reason}" for name, reason in self._missing.items()}
            | ({"peers not asked for": ", ".join(not_asked)} if not_asked else {})
        )
