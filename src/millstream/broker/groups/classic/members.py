"""The members of a classic group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from millstream.broker.groups.values import NO_MEMBER, GroupJoinRequest
from millstream.errors import FencedInstance, UnknownMember


class ClassicMember:
    """One member, with the tickets of its waiting requests."""

    __slots__ = (
        "assignment",
        "client_id",
        "deadline",
        "host",
        "instance_id",
        "is_new",
        "join_ticket",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_ticket",
    )

    def __init__(
        self,
        member_id: str,
        *,
        instance_id: str | None,
        client_id: str,
        host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Mapping[str, bytes],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.host = host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = dict(protocols)
        self.assignment = assignment
        self.is_new = False
        """Whether its first join is not answered yet, so that it cannot send heartbeats."""
        self.deadline = 0.0
        """End of its session, in seconds of the monotonic clock."""
        self.join_ticket: int | None = None
        self.sync_ticket: int | None = None

    @property
    def is_expected(self) -> bool:
        """Whether its session can expire. That of a member that waits for an answer cannot."""
        return self.is_new or (self.join_ticket is None and self.sync_ticket is None)

    def has_same_protocols(self, join: GroupJoinRequest) -> bool:
        """Return whether `join` has the same assignors and metadata, in the same order."""
        return list(self.protocols.items()) == list(join.protocols.items())


class ClassicMembers:
    """All members, in the order in which they joined."""

    def __init__(self) -> None:
        self._by_id: dict[str, ClassicMember] = {}
        self._by_instance: dict[str, str] = {}
        self._support: Counter[str] = Counter()
        self._joining = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(list(self._by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> ClassicMember:
        return self._by_id[member_id]

    @property
    def first_id(self) -> str:
        """The id of the member that joined first, or `NO_MEMBER`."""
        return next(iter(self._by_id), NO_MEMBER)

    def get(self, member_id: str) -> ClassicMember | None:
        return self._by_id.get(member_id)

    def find(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Return the member; raises if it does not exist, or its instance id was taken over."""
        if instance_id is not None:
            owner = self._by_instance.get(instance_id)
            if owner is None:
                raise UnknownMember(f"no member has instance id {instance_id!r}")
            if owner != member_id:
                raise FencedInstance(
                    f"instance id {instance_id!r} was taken over by another member"
                )
        if member_id not in self._by_id:
            raise UnknownMember(f"{member_id!r} is not a member of the group")
        return self._by_id[member_id]

    def with_instance(self, instance_id: str | None) -> ClassicMember | None:
        """Return the static member with that instance id, if there is one."""
        owner = self._by_instance.get(instance_id) if instance_id is not None else None
        return self._by_id[owner] if owner is not None else None

    # Adding and removing.

    def add(self, member: ClassicMember) -> None:
        """Add a member. Its instance id must be free."""
        if member.instance_id is not None:
            assert member.instance_id not in self._by_instance, "one member for each instance"
            self._by_instance[member.instance_id] = member.member_id
        self._by_id[member.member_id] = member
        self._support.update(member.protocols.keys())
        self._joining += member.join_ticket is not None

    def remove(self, member: ClassicMember) -> None:
        del self._by_id[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._support.subtract(member.protocols.keys())
        self._joining -= member.join_ticket is not None

    def replace(self, old: ClassicMember, new: ClassicMember) -> None:
        """Replace a member by another one with the same instance id, at the same position."""
        order = [new if member is old else member for member in self]
        self.remove(old)
        self.add(new)
        self._by_id = {member.member_id: member for member in order}

    def set_join_ticket(self, member: ClassicMember, ticket: int | None) -> None:
        """Set the ticket of a member's waiting join, or `None`."""
        self._joining += (ticket is not None) - (member.join_ticket is not None)
        member.join_ticket = ticket

    def update(self, member: ClassicMember, join: GroupJoinRequest) -> None:
        """Update a member from a new join."""
        self._support.subtract(member.protocols.keys())
        member.protocols = dict(join.protocols)
        self._support.update(member.protocols.keys())
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms

    # Common properties.

    @property
    def joining(self) -> int:
        """Number of members whose join waits."""
        return self._joining

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)

    def supports_any(self, protocols: Mapping[str, bytes]) -> bool:
        """Return whether all members support one of these assignors."""
        return any(self._support[name] == len(self._by_id) for name in protocols)

    def elect_protocol(self) -> str:
        """Return the assignor that all support and most prefer; the earliest vote breaks a tie."""
        candidates = {name for name, count in self._support.items() if count == len(self._by_id)}
        votes = Counter(
            next(name for name in member.protocols if name in candidates)
            for member in self._by_id.values()
        )
        return votes.most_common(1)[0][0]
