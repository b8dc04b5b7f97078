"""A WebSocket client for tests: that of the `websockets` package, with JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect


class Talk:
    """A WebSocket connection and its messages."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._id = 0
        self.pushed: list[Any] = []
        """What came while an answer was waited for."""

    def send(self, **message: Any) -> int:
        """Send a message without waiting for its answer; return its id."""
        self._id += 1
        text = {"id": self._id, **message}
        self.connection.send(json.dumps({name.rstrip("_"): text[name] for name in text}))
        return self._id

    def next(self) -> Any:
        """Return the next message, whatever it is."""
        if self.pushed:
            return self.pushed.pop(0)
        return json.loads(self.connection.recv(timeout=30))

    def ask(self, **message: Any) -> Any:
        """Send a message, and return its answer."""
        message_id = self.send(**message)
        while True:
            found = json.loads(self.connection.recv(timeout=30))
            if found["type"] in ("answer", "error") and found["id"] == message_id:
                return found
            self.pushed.append(found)

    def result(self, **message: Any) -> Any:
        """Send a message, and return the result in its answer."""
        found = self.ask(**message)
        assert found["type"] == "answer", found
        return found["result"]

    def values(self, count: int) -> list[Any]:
        """Return the values of the next `count` records."""
        found: list[Any] = []
        while len(found) < count:
            told = self.next()
            assert told["type"] in ("records", "heartbeat", "lagged"), told
            found += [record["value"] for record in told.get("records", ())]
        assert len(found) == count, found
        return found


@contextmanager
def talking(url: str, **named: Any) -> Iterator[Talk]:
    """Connect to a node."""
    with connect(f"ws://{urlsplit(url).netloc}/v1/ws", **named) as connection:
        yield Talk(connection)
