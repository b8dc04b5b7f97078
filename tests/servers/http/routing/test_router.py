"""Routing finds the operation of a path by dictionaries, whatever the path contains."""

from __future__ import annotations

import pytest
from starlette.responses import Response

from millstream.servers.http.app import OPERATIONS
from millstream.servers.http.routing.operation_access import OPEN
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.router import Router


async def handler(_: HttpRequest) -> Response:
    return Response()


def router(*operations: str) -> Router:
    """Return a router over operations such as `GET /a`."""
    split = [operation.split() for operation in operations]
    return Router(HttpOperation(method, path, handler, "Test", {}, OPEN) for method, path in split)


ROUTER = router(
    "GET /",
    "GET /topics",
    "GET /topics/{topic}",
    "PUT /topics/{topic}",
    "GET /topics/{topic}/records",
    "GET /topics/all/records",
    "GET /groups/{group:path}",
    "PUT /groups/{group:path}/offsets",
)


@pytest.mark.parametrize(
    ("path", "template", "parameters"),
    [
        ("/", "/", {}),
        ("/topics", "/topics", {}),
        ("/topics/a", "/topics/{topic}", {"topic": "a"}),
        ("/topics/{topic}", "/topics/{topic}", {"topic": "{topic}"}),
        ("/topics/a\nb", "/topics/{topic}", {"topic": "a\nb"}),
        ("/topics/a/records", "/topics/{topic}/records", {"topic": "a"}),
        ("/topics/all/records", "/topics/all/records", {}),
        ("/groups/a", "/groups/{group:path}", {"group": "a"}),
        ("/groups/", "/groups/{group:path}", {"group": ""}),
        ("/groups/a/b//c", "/groups/{group:path}", {"group": "a/b//c"}),
        ("/groups/a/offsets", "/groups/{group:path}/offsets", {"group": "a"}),
        ("/groups//offsets/offsets", "/groups/{group:path}/offsets", {"group": "/offsets"}),
        ("/groups/offsets", "/groups/{group:path}", {"group": "offsets"}),
    ],
)
def test_a_path_is_matched_with_its_parameters(
    path: str, template: str, parameters: dict[str, str]
) -> None:
    match = ROUTER.match(path)
    assert match is not None
    assert (match.path.template, match.parameters) == (template, parameters)


@pytest.mark.parametrize(
    "path", ["", "//", "/topic", "/topics/", "/topics//records", "/topics/a/b", "/TOPICS", "topics"]
)
def test_a_path_without_an_operation_has_no_match(path: str) -> None:
    assert ROUTER.match(path) is None


def test_head_is_answered_by_get_unless_it_is_declared() -> None:
    match = ROUTER.match("/topics/a")
    assert match is not None
    assert match.path.methods == ["GET", "HEAD", "PUT"]
    head = match.path.operation("HEAD")
    assert head is not None
    assert head.method == "GET"
    assert match.path.operation("DELETE") is None
    declared = router("GET /a", "HEAD /a").match("/a")
    assert declared is not None
    operation = declared.path.operation("HEAD")
    assert operation is not None
    assert operation.method == "HEAD"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_every_operation_is_found_by_a_path_of_its_template(operation: HttpOperation) -> None:
    path = operation.path
    for name in ("topic", "queue", "group:path", "path:path"):
        path = path.replace(f"{{{name}}}", "orders")
    match = Router(OPERATIONS).match(path)
    assert match is not None
    assert match.path.operation(operation.method) is operation
