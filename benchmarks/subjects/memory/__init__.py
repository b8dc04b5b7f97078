"""Memory of an idle node, of idle connections, of clients that do not read, and of partitions."""

from __future__ import annotations

from subjects.memory.connections import CONNECTIONS
from subjects.memory.idle import IDLE
from subjects.memory.partitions import PARTITIONS
from subjects.memory.unread import UNREAD

EXPERIMENTS = (IDLE, CONNECTIONS, UNREAD, PARTITIONS)
