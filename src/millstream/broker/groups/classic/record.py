"""The stored form of a classic group: one entry, JSON, with a version."""

from __future__ import annotations

import msgspec

from millstream.broker.groups.classic.members import ClassicMember
from millstream.broker.groups.classic.rebalance import ClassicGroupState, ClassicRebalance
from millstream.broker.groups.group import encode_key
from millstream.errors import CorruptData, UnknownFormat

RECORD_VERSION = 1

FAMILY = "classic"
"""First part of the keys; the second is the group id."""


class ClassicMemberRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member of the stored generation. Bytes are base64 in JSON."""

    member_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    assignment: bytes = b""

    def to_member(self) -> ClassicMember:
        """Return the member, without tickets and without a deadline."""
        return ClassicMember(
            self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            host=self.host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=dict(self.protocols),
            assignment=self.assignment,
        )


class ClassicGroupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last generation of a group, with the assignments if it is stable."""

    version: int
    generation: int
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    is_divided: bool = False
    empty_since_ms: int | None = None
    members: tuple[ClassicMemberRecord, ...] = ()


class _Versioned(msgspec.Struct):
    version: int


def group_key(group_id: str) -> bytes:
    return encode_key(FAMILY, group_id)


def encode_group(rebalance: ClassicRebalance, empty_since_ms: int | None) -> bytes:
    return msgspec.json.encode(
        ClassicGroupRecord(
            version=RECORD_VERSION,
            generation=rebalance.generation,
            protocol_type=rebalance.protocol_type,
            protocol=rebalance.protocol,
            leader=rebalance.leader,
            is_divided=rebalance.state is ClassicGroupState.STABLE,
            empty_since_ms=empty_since_ms,
            members=tuple(
                ClassicMemberRecord(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    host=member.host,
                    session_timeout_ms=member.session_timeout_ms,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    protocols=tuple(member.protocols.items()),
                    assignment=member.assignment,
                )
                for member in rebalance.members
            ),
        )
    )


def decode_group(data: bytes) -> ClassicGroupRecord:
    """Decode a stored group; raises `CorruptData` or `UnknownFormat`."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != RECORD_VERSION:
            raise UnknownFormat(f"group record has version {version}, expected {RECORD_VERSION}")
        return msgspec.json.decode(data, type=ClassicGroupRecord)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"invalid group record: {error}") from error
