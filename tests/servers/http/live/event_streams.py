"""A test client of `GET /v1/events`: a socket and the events from it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True)
class Told:
    """One event, as a browser would see it."""

    kind: str
    data: Any
    id: str | None


class Stream:
    """An open stream of events."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self._response = response
        self.last_id: str | None = None
        self.retry_ms: int | None = None

    def next(self) -> Told:
        """Return the next event; raises `EOFError` if the stream ended."""
        kind, data, own_id = "", "", None
        while line := self._response.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                data = value
            elif name == "id":
                self.last_id = own_id = value
            elif name == "retry":
                self.retry_ms = int(value)
            else:
                assert not name, line
                return Told(kind, json.loads(data), own_id)
        raise EOFError

    def next_but(self, *kinds: str) -> Told:
        """Return the next event that is not of these kinds."""
        while (told := self.next()).kind in kinds:
            pass
        return told

    def values(self, count: int) -> list[Any]:
        """Return the values of the next `count` records."""
        return [record["value"] for record in self.records(count)]

    def records(self, count: int) -> list[Any]:
        """Return the next records, from one or more events."""
        found: list[Any] = []
        while len(found) < count:
            told = self.next_but("heartbeat", "lagged")
            assert told.kind == "records", told
            found += told.data["records"]
        assert len(found) == count, found
        return found

    def rest(self) -> list[Told]:
        """Return all events until the stream ends."""
        found = []
        try:
            while True:
                found.append(self.next())
        except EOFError:
            return found


@contextmanager
def watching(
    url: str,
    *topics: str,
    last_id: str | None = None,
    client_id: str | None = None,
    **query: str,
) -> Iterator[Stream]:
    """Watch topics; `from_` is the parameter `from`."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    words = [("topic", topic) for topic in topics]
    words += [(name.rstrip("_"), value) for name, value in query.items()]
    headers = {
        name: value
        for name, value in (("Last-Event-ID", last_id), ("Client-Id", client_id))
        if value is not None
    }
    try:
        connection.request("GET", f"/v1/events?{urlencode(words)}", headers=headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        stream = Stream(response)
        first = stream.next()
        assert (first.kind, first.data) == ("heartbeat", {}), first
        yield stream
    finally:
        connection.close()
        if "response" in locals():
            response.close()
