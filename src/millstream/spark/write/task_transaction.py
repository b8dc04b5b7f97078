"""What a task of a sink tells the driver; apart, since a driver that commits needs no Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.clients.kafka.coordinator import ClientProducerId


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """What a task wrote, for the driver to publish: a transaction that is still open."""

    transactional_id: str
    identity: ClientProducerId
    records: int
