"""What a task of a sink tells the driver; apart, since a driver that commits needs no Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.client.coordinating import Identity


@dataclass(frozen=True, slots=True)
class Share:
    """What a task wrote, for the driver to publish: a transaction that is still open."""

    transactional_id: str
    identity: Identity
    records: int
