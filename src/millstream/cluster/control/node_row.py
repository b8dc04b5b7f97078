"""Registration of a node in the metadata store: `nodes/<id>`, bound to the node's lease.

The key is created only if it does not exist, so a node that was started again waits until its
former life is gone. The create revision is the broker epoch. The same transaction puts the record
of this life, `lives/<id>`, which stays (`cluster/life.py`).
"""

from __future__ import annotations

import msgspec

from millstream.config.schema import Endpoint
from millstream.errors import CorruptData, UnknownFormat

NODES_PREFIX = "nodes/"
LIVES_PREFIX = "lives/"
ROW_VERSION = 1


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of a registered node. Addresses are those that others connect to."""

    version: int = ROW_VERSION
    directory: str
    """Id of the node's data directory."""
    release: str
    """Version of the software, for people."""
    kafka: tuple[str, int]
    http: tuple[str, int]
    is_http_tls: bool = False
    """Whether HTTP clients connect to it by TLS."""
    peer: tuple[str, int]
    rack: str | None = None
    started_ms: int = 0
    broker_epoch: int = 0
    """0 if this is the first put of the key: then it is the revision of that put."""
    continuous_since: int = 0
    """Broker epoch of the first life with the same directory; 0 if that is this one."""
    is_stopping: bool = False

    @property
    def kafka_endpoint(self) -> Endpoint:
        return Endpoint(*self.kafka)

    @property
    def http_url(self) -> str:
        return f"{'https' if self.is_http_tls else 'http'}://{Endpoint(*self.http)}"

    @property
    def peer_endpoint(self) -> Endpoint:
        return Endpoint(*self.peer)


def node_key(node_id: int) -> str:
    """Return the key of a node's registration."""
    return f"{NODES_PREFIX}{node_id}"


def node_of_life(key: str) -> int:
    """Return the node of the key of a life."""
    return int(key.removeprefix(LIVES_PREFIX))


def life_key(node_id: int) -> str:
    """Return the key of the record of a node's last life."""
    return f"{LIVES_PREFIX}{node_id}"


def encode_node(row: NodeRow) -> bytes:
    return msgspec.json.encode(row)


def decode_node(key: str, value: bytes, revision: int) -> tuple[int, NodeRow]:
    """Return the id and the registration of a node, which has all of its numbers."""
    try:
        row = msgspec.json.decode(value, type=NodeRow)
        node_id = int(key.removeprefix(NODES_PREFIX))
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptData(f"{key} is not a valid registration of a node: {error}") from error
    if row.version != ROW_VERSION:
        raise UnknownFormat(f"{key} has version {row.version}, expected {ROW_VERSION}")
    broker_epoch = row.broker_epoch or revision
    return node_id, msgspec.structs.replace(
        row,
        broker_epoch=broker_epoch,
        continuous_since=row.continuous_since or broker_epoch,
    )
