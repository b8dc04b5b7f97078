"""Result of a sink's task, separate because a driver that commits does not need Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.clients.kafka.coordinator import ClientProducerId


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """The open transaction of a task, which the driver publishes."""

    transactional_id: str
    identity: ClientProducerId
    records: int
