"""Trace context of the current call.

OpenTelemetry is not imported here: a process that uses tracing has imported it.
"""

from __future__ import annotations

import sys


def traceparent() -> str | None:
    """Return the `traceparent` header for the current span; `None` if there is no span."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
