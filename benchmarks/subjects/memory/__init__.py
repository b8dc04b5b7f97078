"""Memory: of an idle node, of connections that wait, of clients that do not read, of partitions."""

from __future__ import annotations

from subjects.memory.connections import CONNECTIONS
from subjects.memory.idle import IDLE
from subjects.memory.partitions import PARTITIONS
from subjects.memory.unread import UNREAD

EXPERIMENTS = (IDLE, CONNECTIONS, UNREAD, PARTITIONS)
