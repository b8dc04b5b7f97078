"""The trace that a call is part of, where its process follows one.

Nothing is loaded for this: a process that follows its calls has loaded OpenTelemetry itself.
"""

from __future__ import annotations

import sys


def traceparent() -> str | None:
    """Return what a node is told of the span that is current here; nothing where there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
