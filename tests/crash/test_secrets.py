"""A node with logins is used with twenty secrets and killed: none of them is found anywhere.

It is a process of its own, with everything on that could repeat what clients send: the log at level
debug, the access log, traces and metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.crash.secured_node import SecuredNode, SpanCollector


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    with SpanCollector() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def node(tmp_path: Path, collector: SpanCollector) -> Iterator[SecuredNode]:
    host, port = collector.server_address[:2]
    node = SecuredNode(tmp_path, f"http://{host!s}:{port}")
    node.start()
    yield node
    node.process.close()


def test_no_secret_is_found_after_a_crash(node: SecuredNode, collector: SpanCollector) -> None:
    node.make_secrets()
    node.use_tokens()
    node.use_passwords()
    node.process.kill()
    node.start()
    assert node.ask("GET", "/v1/topics", authorization=f"Bearer {node.tokens[1]}")[0] == 200
    node.process.stop()
    files = {str(path): path.read_bytes() for path in node.folder.rglob("*") if path.is_file()}
    places = files | {
        "answers": b"\n".join(node.answers),
        "telemetry": b"\n".join(collector.received),
    }
    ids = [token.split("_")[1].encode() for token in node.tokens]
    log = files[str(node.folder / "log")]
    assert all(any(token_id in place for place in places.values()) for token_id in ids)
    assert b"user-1" in log
    assert b"POST /v1/access/tokens" in places["telemetry"]
    assert any(path.endswith("meta.db") for path in files)
    hits = [
        (form, path)
        for form, needle in node.needles().items()
        for path, content in places.items()
        if needle in content
    ]
    assert hits == []
