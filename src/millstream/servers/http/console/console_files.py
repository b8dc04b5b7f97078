"""The console: the files of a page that shows a node, served at `/`.

The page asks the same operations as everybody else, so this has no more to do than to hand out its
files, which lie in `console/` and are read once. They are no operations: `/openapi.json` tells of
what programs use, and these belong to the one page that loads them.

All of it comes from the node. The policy lets the page load scripts and styles, and ask, from
there only, and run nothing that stands in a document: a record that got into the page as markup
would still do nothing.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import Response

from millstream.servers.http.routing.operations import HttpOperation, Media
from millstream.servers.http.routing.request import HttpRequest

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""What a browser lets the page do: nothing that is not from the node itself."""

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What there is in the folder; anything else is no part of the page."""

FIRST = "index.html"

_FOLDER = "static"
_ETAG_BYTES = 12


class ConsoleFile(NamedTuple):
    """A file of the page, and what a browser is told with it."""

    content: bytes
    media_type: str
    etag: str

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the content, and with the news that it is still the same."""
        return {
            "ETag": self.etag,
            "Cache-Control": "no-cache",  # Kept, and asked for each time: a node may be updated.
            "Content-Security-Policy": POLICY,
        }


def read_console() -> Mapping[str, ConsoleFile]:
    """Read all files of the page, by their paths within it."""
    return dict(_read(files("millstream.servers.http.console") / _FOLDER, ""))


def _read(folder: Traversable, path: str) -> Iterator[tuple[str, ConsoleFile]]:
    for found in folder.iterdir():
        name = posixpath.join(path, found.name)
        if found.is_dir():
            yield from _read(found, name)
        elif (kind := MEDIA_TYPES.get(posixpath.splitext(name)[1])) is not None:
            content = found.read_bytes()
            digest = hashlib.blake2b(content, digest_size=_ETAG_BYTES).hexdigest()
            yield name, ConsoleFile(content, kind, f'"{digest}"')


def console_pages() -> list[HttpOperation]:
    """Return how the page is reached: what is declared here is routed, and not described."""
    console = read_console()

    async def show_console(request: HttpRequest) -> Response:
        """Show the console."""
        return _answer(request, console[FIRST])

    async def send_file(request: HttpRequest) -> Response:
        """Send what the console is made of."""
        found = console.get(request.path_params["file"])
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return _answer(request, found)

    page = {HTTPStatus.OK: Media("text/html", "The console")}
    parts = {HTTPStatus.OK: Media("text/javascript", "A part of the console")}
    return [
        HttpOperation("GET", "/", show_console, "The console", page, tag="console"),
        HttpOperation("GET", "/console/{file:path}", send_file, "Its files", parts, tag="console"),
    ]


def _answer(request: HttpRequest, found: ConsoleFile) -> Response:
    if _is_known(request.headers.get("if-none-match", ""), found.etag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=found.headers)
    return Response(found.content, headers=found.headers, media_type=found.media_type)


def _is_known(sent: str, etag: str) -> bool:
    """Whether a browser has the file already: it may name several versions, or any."""
    tags = (tag.strip().removeprefix("W/") for tag in sent.split(","))
    return any(tag in (etag, "*") for tag in tags)
