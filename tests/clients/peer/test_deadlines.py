"""Every request to another node has a deadline, at its caller and on the wire."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream.clients.peer.pool import PeerPool
from millstream.errors import OutcomeUnknown
from millstream.protocols.peer.apis import PEER_APIS, PeerApi
from millstream.protocols.peer.frame import FrameHeader, FrameKind
from tests.clients.peer.scripted_peer import ScriptedConnection, scripted_peer
from tests.in_loop import in_loop
from tests.protocols.peer.messages.test_golden import GOLDEN
from tests.servers.peer.peer_nodes import running_peer

SOURCES = Path(millstream.__file__).parent
REQUESTS = {type(message): message for message, _ in GOLDEN.values()}
"""One request of each API, among others."""

SENDING = ("call", "send", "stream")
"""Methods of the pool that send a request."""


def call_sites() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of the pool in the sources, with where it is."""
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text()
        if "peers." not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in SENDING
                and ast.unparse(node.func.value).split(".")[-1].lstrip("_") == "peers"
            ):
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", node


SITES = dict(call_sites())


def test_the_call_sites_are_found():
    files = {place.split(":")[0] for place in SITES}
    assert files >= {
        "cluster/coordination/remote_transactions.py",
        "cluster/forwarding/append_forwarder.py",
        "cluster/reading/remote_partition.py",
        "cluster/replication/replica_fetcher.py",
        "cluster/replication/segment_copier.py",
        "servers/http/forwarding/request_forwarder.py",
    }


@pytest.mark.parametrize("place", SITES)
def test_every_call_site_sets_a_deadline(place: str):
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in SITES[place].keywords}
    assert "timeout_s" in given
    assert "None" not in given["timeout_s"]
    assert "inf" not in given["timeout_s"]
    if SITES[place].func.attr == "stream":  # type: ignore[attr-defined]
        assert "idle_s" in given


@pytest.mark.parametrize("name", SENDING)
def test_the_pool_sends_nothing_without_a_deadline(name: str):
    parameter = inspect.signature(getattr(PeerPool, name)).parameters["timeout_s"]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.default is inspect.Parameter.empty


@pytest.mark.parametrize("api", PEER_APIS.values(), ids=lambda api: api.name)
@in_loop
async def test_a_request_that_is_never_answered_ends_at_its_deadline_which_the_peer_knows(
    api: PeerApi,
):
    headers: asyncio.Queue[FrameHeader] = asyncio.Queue()

    async def serve(peer: ScriptedConnection) -> None:
        await peer.welcome()
        header, _ = await peer.next_frame()
        headers.put_nowait(header)
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint, running_peer() as server:
        pool = server.pool(address_of=lambda _: endpoint)
        purpose = min(api.purposes)
        with pytest.raises(OutcomeUnknown, match=f"no response to {api.name} within"):
            await pool.call(1, purpose, REQUESTS[api.request], timeout_s=0.2)
        header = await headers.get()
        assert header.kind is FrameKind.REQUEST
        assert 0 < header.deadline_ms <= 200
        pool.close()
