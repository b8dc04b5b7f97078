"""Odd paths: each is a separate stream or is refused, and none leaves the data directory."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from millstream.storage.files.names import is_topic
from millstream.testing.broker import running_broker
from tests.servers.http.calls import ask

ODD = [
    ".",
    "..",
    "../..",
    "../../etc/passwd",
    "a/../../b",
    "/",
    "//",
    "/etc/passwd",
    "\\..\\..",
    "C:\\x",
    "CON",
    "nul.txt",
    "__consumer_offsets",
    "__state",
    "meta.db",
    "lock",
    "topics",
    "trash",
    "~",
    "$HOME",
    "`id`",
    "a;b",
    "a b",
    " ",
    "%",
    "%2e%2e%2f",
    "%00",
    "?",
    "#",
    "&",
    "é",
    "e\u0301",
    "\u202e",
    "\ufeff",
    "😀",
    "-",
    "--help",
    "a" * 249,
    "a" * 250,
    "a" * 1024,
    "A/b",
    "a/B",
    "a/b",
    "a//b",
    "a/b/",
    "<script>",
    "'",
    '"',
    "\u2028",
    "a.b",
]
REFUSED = ["", "\0", "a\0", "a\nb", "a\rb", "\x1f", "\x7f", "a" * 1025, "é" * 600]
BROKEN = ["%ff", "a%c3", "%ed%a0%80", "%c0%ae%c0%ae"]


def test_odd_paths_are_streams_of_their_own_or_refused(tmp_path: Path) -> None:
    data = tmp_path / "node" / "data"
    data.parent.mkdir()
    with running_broker(data) as node:
        for number, path in enumerate(ODD):
            url = f"/v1/streams/{quote(path, safe='')}"
            body = b"%d" % number
            answer = ask(node.url, "PUT", url, body, {"Content-Type": "text/plain"})
            assert answer.status == 201, (path, answer)
            assert answer.headers["location"] == node.url + url
        for number, path in enumerate(ODD):
            answer = ask(node.url, "GET", f"/v1/streams/{quote(path, safe='')}")
            assert answer.body == b"%d" % number, path
        for path in [*(quote(one, safe="") for one in REFUSED), *BROKEN]:
            answer = ask(node.url, "PUT", f"/v1/streams/{path}", None, {"Content-Type": "a/b"})
            assert answer.status == 400, (path, answer)
        streams = node.server.broker.streams.of("").all()
        assert len(streams) == len(ODD)
    assert [one.name for one in tmp_path.iterdir()] == ["node"]
    assert [one.name for one in data.parent.iterdir()] == ["data"]
    assert all(is_topic(one.name) for one in (data / "topics").iterdir())
