"""Hooks of schemathesis for the HTTP server; see `test_openapi.py`."""

from __future__ import annotations

import re
from typing import Any

import schemathesis

WAIT_MS_MAX = 5
"""Requests may wait for a minute; the checks are the same after some milliseconds."""

LEAK = re.compile(r"Traceback|File \"|\.py\b|/tmp/|/home/|/usr/|/var/|site-packages|Python/\d")
"""Contents that an error must not have: calls, paths, versions."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any = None) -> None:
    """Shorten waits, and send headers as text, though a response had a number there."""
    case.headers = {name: str(value) for name, value in (case.headers or {}).items()}
    for fields in (case.query, case.body):
        if isinstance(fields, dict) and _is_long(fields.get("wait_ms")):
            fields["wait_ms"] = WAIT_MS_MAX


def _is_long(wait_ms: Any) -> bool:
    return (
        re.fullmatch(r"[0-9]{1,5}(\.0)?", str(wait_ms)) is not None
        and WAIT_MS_MAX < float(wait_ms) <= 60_000
    )


@schemathesis.check
def what_the_document_allows_is_well_formed(ctx: Any, response: Any, case: Any) -> None:
    """A request that matches the document may be refused for the state of the node, never for its
    form.
    """
    mode = case.meta.generation.mode if case.meta is not None else None
    if case.method.upper() == "HEAD":
        return  # Its answer has no body that would say why.
    if mode == schemathesis.GenerationMode.POSITIVE and response.status_code == 400:
        error = response.json()["error"]
        is_malformed = error["code"] == "malformed_request"
        assert not is_malformed, f"refused, though it fits: {error['message']}"


@schemathesis.check
def every_answer_says_what_it_cost(ctx: Any, response: Any, case: Any) -> None:
    """`Server-Timing` is on all responses, errors too."""
    assert "server-timing" in {name.lower() for name in response.headers}


@schemathesis.check
def every_error_has_the_one_shape_and_tells_no_secrets(ctx: Any, response: Any, case: Any) -> None:
    """S28, for all requests of this test."""
    if response.status_code >= 400 and case.method.upper() != "HEAD":
        error = response.json()["error"]
        assert error.keys() == {"code", "message", "detail"}
        assert error["code"]
        assert error["message"]
        assert not LEAK.search(response.text), response.text[:500]
