"""The console: serves the files of the web page at `/`.

The page uses the same operations as every other client, so the server only has to send its files.
They are in `static/` and are read once. They are not operations in `/openapi.json`, because only
the page itself loads them.

Everything comes from the node. The content security policy lets the page load scripts and styles,
and send requests, to the node only, and forbids inline scripts: a record that got into the page as
markup would still not run.
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

from millstream.servers.http.routing.operation_access import OPEN
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
"""The content security policy: nothing from anywhere but the node."""

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Types of the files; other files in the folder are not served."""

FIRST = "index.html"
API_PAGE = "docs.html"

_FOLDER = "static"
_ETAG_BYTES = 12


class ConsoleFile(NamedTuple):
    """A file of the page with its headers."""

    content: bytes
    media_type: str
    etag: str

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the file, also for a response of 304."""
        return {
            "ETag": self.etag,
            "Cache-Control": "no-cache",  # Cached, but always revalidated.
            "Content-Security-Policy": POLICY,
        }


def read_console() -> Mapping[str, ConsoleFile]:
    """Read all files of the page, by their paths within it."""
    return dict(_read(files("millstream.servers.http.console") / _FOLDER, ""))


def _read(folder: Traversable, path: str) -> Iterator[tuple[str, ConsoleFile]]:
    for entry in folder.iterdir():
        name = posixpath.join(path, entry.name)
        if entry.is_dir():
            yield from _read(entry, name)
        elif (kind := MEDIA_TYPES.get(posixpath.splitext(name)[1])) is not None:
            content = entry.read_bytes()
            digest = hashlib.blake2b(content, digest_size=_ETAG_BYTES).hexdigest()
            yield name, ConsoleFile(content, kind, f'"{digest}"')


def console_pages() -> list[HttpOperation]:
    """Return the operations that serve the page. They are routed but not described."""
    console = read_console()

    async def show_console(request: HttpRequest) -> Response:
        """Return the page."""
        return _answer(request, console[FIRST])

    async def show_api(request: HttpRequest) -> Response:
        """Return the page that shows `/openapi.json`."""
        return _answer(request, console[API_PAGE])

    async def send_file(request: HttpRequest) -> Response:
        """Return a file of the page."""
        file = console.get(request.path_params["file"])
        if file is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "the console has no such file")
        return _answer(request, file)

    page = {HTTPStatus.OK: Media("text/html", "The console")}
    files_by_status = {HTTPStatus.OK: Media("text/javascript", "A file of the console")}
    return [
        HttpOperation("GET", "/", show_console, "Get the console", page, OPEN, tag="console"),
        HttpOperation(
            "GET", "/docs", show_api, "Get the page of the API", page, OPEN, tag="console"
        ),
        HttpOperation(
            "GET",
            "/console/{file:path}",
            send_file,
            "Get a file of the console",
            files_by_status,
            tag="console",
            access=OPEN,
        ),
    ]


def _answer(request: HttpRequest, file: ConsoleFile) -> Response:
    if _is_known(request.headers.get("if-none-match", ""), file.etag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=file.headers)
    return Response(file.content, headers=file.headers, media_type=file.media_type)


def _is_known(sent: str, etag: str) -> bool:
    """Return whether `If-None-Match` has the current version; it may list several, or any."""
    tags = (tag.strip().removeprefix("W/") for tag in sent.split(","))
    return any(tag in (etag, "*") for tag in tags)
