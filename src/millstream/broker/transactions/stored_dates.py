"""Times in the state log of a coordinator, from which its clock continues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from millstream.broker.state.state_clock import CLOCK_KEY
from millstream.broker.transactions.publication_record import (
    decode_publication,
    is_publication_key,
)
from millstream.broker.transactions.transaction_record import decode


def stored_dates(entries: Mapping[bytes, bytes]) -> Iterator[int]:
    """Yield the times of all publications and of the starts of transactions."""
    for key, value in entries.items():
        if is_publication_key(key):
            yield decode_publication(key, value).update_ms
        elif key != CLOCK_KEY:
            yield decode(key, value).begun_ms
