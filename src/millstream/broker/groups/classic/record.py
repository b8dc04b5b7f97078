"""A classic group as it is stored: one entry, JSON, with a version."""

from __future__ import annotations

import msgspec

from millstream.broker.groups.classic.members import ClassicMember
from millstream.broker.groups.classic.rebalance import ClassicGroupState, ClassicRebalance
from millstream.broker.groups.group import encode_key
from millstream.errors import CorruptData, UnknownFormat

RECORD_VERSION = 1

FAMILY = "classic"
"""First part of the keys; the second is the group's id."""


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
        """Return the member, who waits for nothing and has no deadline yet."""
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
    """A group's last generation, with its members' shares once they are divided."""

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
    """Return the key under which a group is stored."""
    return encode_key(FAMILY, group_id)


def encode_group(rounds: ClassicRebalance, empty_since_ms: int | None) -> bytes:
    """Return what is stored of a group."""
    return msgspec.json.encode(
        ClassicGroupRecord(
            version=RECORD_VERSION,
            generation=rounds.generation,
            protocol_type=rounds.protocol_type,
            protocol=rounds.protocol,
            leader=rounds.leader,
            is_divided=rounds.state is ClassicGroupState.STABLE,
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
                for member in rounds.members
            ),
        )
    )


def decode_group(data: bytes) -> ClassicGroupRecord:
    """Return what was stored; raises `CorruptData` or `UnknownFormat`."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != RECORD_VERSION:
            raise UnknownFormat(f"group record has version {version}, known is {RECORD_VERSION}")
        return msgspec.json.decode(data, type=ClassicGroupRecord)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"group record: {error}") from error
