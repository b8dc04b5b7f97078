"""Times as options: ISO 8601, UTC unless they have a zone."""

from __future__ import annotations

from datetime import UTC, datetime

import click


def timestamp_of(text: str) -> int:
    """Return the milliseconds since 1970 of an ISO 8601 time; raises `ValueError`."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def time_option(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Parse the value of an option that is a time."""
    if text is None:
        return None
    try:
        return timestamp_of(text)
    except ValueError:
        raise click.BadParameter(f"must be an ISO 8601 time, got {text!r}") from None
