"""`GET /openapi.json`: the OpenAPI 3.1 document of the server.

It is generated from the declared operations; see `operations.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from inspect import getdoc
from typing import Any

import msgspec

import millstream
from millstream.broker.quota_rules import NAME_SIZE_MAX
from millstream.protocols.http.errors import ErrorAnswer
from millstream.servers.http.routing.operations import (
    LIMITED_PREFIX,
    UNTHROTTLED_PATHS,
    Answer,
    HttpOperation,
    Media,
    Parameter,
)
from millstream.servers.http.routing.usage import CLIENT_ID

_EVERYWHERE = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
"""Errors that every request may get."""

_WITH_BODY = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
"""Errors that a request with a body may get in addition."""

_WITH_LOGINS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Errors of operations that need rights, on a node with logins."""

_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token of `millstream access tokens`, on a node with logins.",
}

_CLIENT = Parameter(
    CLIENT_ID,
    "Client id, which selects the quotas of the client.",
    {"type": "string", "maxLength": NAME_SIZE_MAX, "pattern": "^[ -~]*$"},
)

_REFERENCE = "#/components/schemas/{name}"

TOPIC_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"

_TIMING = {"Server-Timing": {"$ref": "#/components/headers/Server-Timing"}}


_STREAM_PATH = {
    "type": "string",
    "pattern": r"^[^\u0000-\u001f\u007f]+$",
}


def document(operations: Sequence[HttpOperation]) -> dict[str, Any]:
    """Return the OpenAPI document of all operations."""
    types = [ErrorAnswer, *_types(operations)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = operation.path.replace(":path}", "}")
        paths.setdefault(path, {})[operation.method.lower()] = _operation(
            operation, by_type, components
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millstream",
            "version": millstream.__version__,
            "description": "Topics, live delivery, streams and work queues over HTTP.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": _TOKEN},
            "headers": {
                "Server-Timing": {
                    "description": "Times of the response in milliseconds.",
                    "schema": {"type": "string"},
                    "example": "commit;dur=0.4, fsync;dur=0.3, throttle;dur=0, total;dur=0.6",
                }
            },
        },
    }


def _types(operations: Sequence[HttpOperation]) -> list[type]:
    types: dict[type, None] = {}
    for operation in operations:
        for kind in (operation.body, *operation.answers.values()):
            if isinstance(kind, type):
                types[kind] = None
    return list(types)


def _operation(
    operation: HttpOperation, by_type: dict[type, Any], components: dict[str, Any]
) -> dict[str, Any]:
    name = getattr(operation.handler, "__name__", operation.path)
    described: dict[str, Any] = {
        "operationId": name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            *_path_parameters(operation.path),
            *_query_parameters(operation, components),
        ],
        "responses": {
            str(int(status)): _answer(operation, kind, by_type, status)
            for status, kind in operation.answers.items()
        },
    }
    described["parameters"] += [_header(header) for header in operation.headers]
    if operation.path.startswith(LIMITED_PREFIX):
        described["parameters"].append(_header(_CLIENT))
    if not operation.access.is_open:
        described["security"] = [{}, {"token": []}]
    if words := getdoc(operation.handler):
        described["description"] = words
    errors = [*_EVERYWHERE, *operation.errors]
    if operation.path.startswith(LIMITED_PREFIX) and operation.path not in UNTHROTTLED_PATHS:
        errors.append(HTTPStatus.TOO_MANY_REQUESTS)
    names_topic = operation.query is not None and "topic" in operation.query.__struct_fields__
    if "{" in operation.path or names_topic:
        errors.append(HTTPStatus.NOT_FOUND)
    if not operation.access.is_open:
        errors += _WITH_LOGINS
    if operation.body is not None:
        errors += _WITH_BODY
        described["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": _content(operation.body, by_type, operation.example),
        }
    for status in sorted(set(errors)):
        described["responses"].setdefault(str(int(status)), _error(status, by_type))
    return described


_NUMBERS = frozenset({"node", "partition"})
"""Path parameters that are numbers; all others are names."""


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part.partition("}")[0] for part in path.split("{")[1:]]
    return [
        {
            "name": name.removesuffix(":path"),
            "in": "path",
            "required": True,
            "schema": _path_schema(name),
            "example": 0 if name in _NUMBERS else "orders",
        }
        for name in names
    ]


def _path_schema(name: str) -> dict[str, Any]:
    if name in _NUMBERS:
        return {"type": "integer", "minimum": 0, "maximum": 999_999_999}
    if name.endswith(":path"):
        return _STREAM_PATH
    return {"type": "string", "pattern": TOPIC_PATTERN}


def _query_parameters(operation: HttpOperation, components: dict[str, Any]) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    _, found = msgspec.json.schema_components([operation.query], ref_template=_REFERENCE)
    own = found.pop(operation.query.__name__)
    components |= found
    needed = own.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in needed,
            "schema": _without_null(part),
            **({"description": part["description"]} if "description" in part else {}),
        }
        for name, part in own["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query parameter without null, which a query cannot express."""
    if "anyOf" not in schema:
        return schema
    kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
    rest = {key: part for key, part in schema.items() if key not in ("anyOf", "default")}
    return {**kinds[0], **rest} if len(kinds) == 1 else {"anyOf": kinds, **rest}


def _header(header: Parameter) -> dict[str, Any]:
    return {
        "name": header.name,
        "in": "header",
        "required": False,
        "description": header.description,
        "schema": dict(header.schema),
    }


def _answer(
    operation: HttpOperation, kind: Answer, by_type: dict[type, Any], status: HTTPStatus
) -> dict[str, Any]:
    words = kind.description if isinstance(kind, Media) else status.phrase
    response: dict[str, Any] = {"description": words}
    if kind is not None:
        is_first = status == next(iter(operation.answers))
        response["content"] = _content(
            kind, by_type, operation.answer_example if is_first else None
        )
    response["headers"] = {
        header.name: {"description": header.description, "schema": dict(header.schema)}
        for header in operation.answer_headers
    } | _TIMING
    return response


def _content(kind: Media | type, by_type: dict[type, Any], example: Any) -> dict[str, Any]:
    if isinstance(kind, Media):
        media_type, schema, example = kind.media_type, {}, kind.example
    else:
        media_type, schema = "application/json", by_type[kind]
    return {media_type: {"schema": schema} | ({} if example is None else {"example": example})}


def _error(status: HTTPStatus, by_type: dict[type, Any]) -> dict[str, Any]:
    return {
        "description": status.phrase,
        "content": {"application/json": {"schema": by_type[ErrorAnswer]}},
        "headers": _TIMING,
    }
