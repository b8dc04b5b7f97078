"""ACLs: rules that allow or deny an operation on resources to a principal. Pure.

As in Kafka: a rule that denies precedes all that allow, and what no rule allows is denied. A rule
names its resources literally, by a prefix, or all of a type with `*`; its principal may be
`User:*`, its host `*` or one address. The right to read, write, delete or alter includes that to
describe; the right to alter configs includes that to describe them.

One thing is stricter than in Kafka: a rule that allows something to `User:*` does not allow it to
clients that have not logged in. They need a rule for `User:ANONYMOUS`.
"""

from __future__ import annotations

import enum
import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from millstream.broker.access.principal import (
    ANONYMOUS,
    EVERY_USER,
    NODE,
    Principal,
    parse_principal,
)
from millstream.broker.access.resources import (
    CLUSTER_NAME,
    OPERATIONS,
    WORDS,
    Operation,
    PatternType,
    Resource,
    ResourceType,
)
from millstream.errors import InvalidRequest

WILDCARD = "*"
"""As the name in a literal pattern: all resources of the type. As a host: all hosts."""

NAME_SIZE_MAX = 255
"""Characters of a name in an ACL; the longest name of a topic has 249."""


class Permission(enum.IntEnum):
    """Whether an ACL allows or denies. The numbers are Kafka's."""

    ANY = 1
    """In a filter: both."""
    DENY = 2
    ALLOW = 3


class ResourcePattern(NamedTuple):
    """The resources of an ACL."""

    kind: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def matches(self, name: str) -> bool:
        """Return whether the resource of that name is among them."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class Acl(NamedTuple):
    """One rule."""

    pattern: ResourcePattern
    principal: Principal
    host: str
    operation: Operation
    permission: Permission

    def applies_to(self, principal: Principal, host: str) -> bool:
        """Return whether the rule is for that principal at that host."""
        if self.host not in (WILDCARD, host):
            return False
        if self.principal == principal:
            return True
        if self.principal != EVERY_USER or principal.kind == NODE:
            return False
        return principal != ANONYMOUS or self.permission is Permission.DENY


class AclFilter(NamedTuple):
    """Selects ACLs. `None`, and the members `ANY`, select all."""

    kind: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def selects(self, acl: Acl) -> bool:
        """Return whether an ACL is among those that the filter selects."""
        return (
            self.kind in (ResourceType.ANY, acl.pattern.kind)
            and self._selects_name(acl.pattern)
            and self.principal in (None, str(acl.principal))
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _selects_name(self, pattern: ResourcePattern) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is PatternType.MATCH:
            return pattern.matches(self.name)
        return self.name == pattern.name


ALLOWED_BY: Mapping[Operation, frozenset[Operation]] = MappingProxyType(
    {
        Operation.DESCRIBE: frozenset(
            {
                Operation.DESCRIBE,
                Operation.READ,
                Operation.WRITE,
                Operation.DELETE,
                Operation.ALTER,
                Operation.ALL,
            }
        ),
        Operation.DESCRIBE_CONFIGS: frozenset(
            {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}
        ),
    }
)
"""The operations whose permission includes that for another one. All others: itself and ALL."""


class Acls:
    """All rules, and the decisions that follow from them."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._acls: set[Acl] = set()
        self._by_name: dict[ResourcePattern, list[Acl]] = {}
        self._prefix_sizes: Counter[int] = Counter()
        """How many rules have a prefix of a length: only such prefixes of a name are looked up."""
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        return len(self._acls)

    def __iter__(self) -> Iterator[Acl]:
        return iter(sorted(self._acls))

    def __contains__(self, acl: object) -> bool:
        return acl in self._acls

    def add(self, acl: Acl) -> None:
        """Add a rule; without effect if there is such a one."""
        if acl not in self._acls:
            self._acls.add(acl)
            self._by_name.setdefault(acl.pattern, []).append(acl)
            if acl.pattern.pattern_type is PatternType.PREFIXED:
                self._prefix_sizes[len(acl.pattern.name)] += 1

    def remove(self, acl: Acl) -> None:
        """Remove a rule; without effect if there is none."""
        if acl in self._acls:
            self._acls.remove(acl)
            rules = self._by_name[acl.pattern]
            rules.remove(acl)
            if acl.pattern.pattern_type is PatternType.PREFIXED:
                self._prefix_sizes[len(acl.pattern.name)] -= 1
                self._prefix_sizes += Counter()  # Drops what is 0.
            if not rules:
                del self._by_name[acl.pattern]

    def selected(self, wanted: AclFilter) -> list[Acl]:
        """Return the rules that a filter selects, sorted."""
        return [acl for acl in self if wanted.selects(acl)]

    def denies(
        self, principal: Principal, host: str, operation: Operation, resource: Resource
    ) -> bool:
        """Return whether a rule denies the operation."""
        denying = (operation, Operation.ALL)
        return any(
            acl.permission is Permission.DENY
            and acl.operation in denying
            and acl.applies_to(principal, host)
            for acl in self._of(resource)
        )

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource: Resource
    ) -> bool:
        """Return whether a rule allows the operation, and none denies it."""
        allowing = ALLOWED_BY.get(operation) or (operation, Operation.ALL)
        is_allowed = any(
            acl.permission is Permission.ALLOW
            and acl.operation in allowing
            and acl.applies_to(principal, host)
            for acl in self._of(resource)
        )
        return is_allowed and not self.denies(principal, host, operation, resource)

    def allows_some(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Return whether the operation is allowed on some resource of a type, existing or not."""
        allowing = ALLOWED_BY.get(operation) or (operation, Operation.ALL)
        own = [
            acl
            for acl in self._acls
            if acl.pattern.kind is kind and acl.applies_to(principal, host)
        ]
        denied = [
            acl.pattern
            for acl in own
            if acl.permission is Permission.DENY and acl.operation in (operation, Operation.ALL)
        ]
        return any(
            acl.permission is Permission.ALLOW
            and acl.operation in allowing
            and not any(_covers(pattern, acl.pattern) for pattern in denied)
            for acl in own
        )

    def allows_below(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        kind: ResourceType,
        prefix: str,
    ) -> bool:
        """Return whether the operation is allowed on all resources whose names begin so."""
        everything = ResourcePattern(kind, prefix, PatternType.PREFIXED)
        own = [
            acl
            for acl in self._acls
            if acl.pattern.kind is kind and acl.applies_to(principal, host)
        ]
        is_denied = any(
            acl.permission is Permission.DENY
            and acl.operation in (operation, Operation.ALL)
            and (_covers(acl.pattern, everything) or _covers(everything, acl.pattern))
            for acl in own
        )
        return not is_denied and any(
            acl.permission is Permission.ALLOW
            and acl.operation in (ALLOWED_BY.get(operation) or (operation, Operation.ALL))
            and _covers(acl.pattern, everything)
            for acl in own
        )

    def _of(self, resource: Resource) -> Iterator[Acl]:
        """Yield the rules whose pattern matches a resource."""
        kind, name = resource
        patterns = self._by_name
        yield from patterns.get(ResourcePattern(kind, name), ())
        if name != WILDCARD:
            yield from patterns.get(ResourcePattern(kind, WILDCARD), ())
        for size in self._prefix_sizes:
            if size <= len(name):
                prefix = ResourcePattern(kind, name[:size], PatternType.PREFIXED)
                yield from patterns.get(prefix, ())


def _covers(outer: ResourcePattern, inner: ResourcePattern) -> bool:
    """Return whether one pattern matches all resources that another one matches."""
    if outer.pattern_type is PatternType.PREFIXED:
        is_everything = inner.pattern_type is PatternType.LITERAL and inner.name == WILDCARD
        return not is_everything and inner.name.startswith(outer.name)
    return outer.name == WILDCARD or outer == inner


def check_acl(acl: Acl) -> Acl:
    """Return an ACL if it can be stored."""
    kind, name, pattern_type = acl.pattern
    if kind is ResourceType.ANY or pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequest(
            "an ACL needs a resource type, and the pattern type literal or prefixed,"
            f" got {kind.name} and {pattern_type.name}"
        )
    if acl.operation is Operation.ANY or acl.permission is Permission.ANY:
        raise InvalidRequest(
            "an ACL needs one operation and one permission,"
            f" got {acl.operation.name} and {acl.permission.name}"
        )
    if not 1 <= len(name) <= NAME_SIZE_MAX:
        raise InvalidRequest(
            f"name of a resource must have 1 to {NAME_SIZE_MAX} characters, got {len(name)}"
        )
    if kind is ResourceType.CLUSTER and (name, pattern_type) != (CLUSTER_NAME, PatternType.LITERAL):
        raise InvalidRequest(
            f"the name of the cluster must be {CLUSTER_NAME!r}, literally, got {name[:300]!r}"
        )
    allowed = (*OPERATIONS[kind], Operation.ALL)
    if acl.operation not in allowed:
        words = ", ".join(operation.name for operation in allowed)
        raise InvalidRequest(
            f"operation on a {WORDS[kind]} must be one of {words}, got {acl.operation.name}"
        )
    parse_principal(str(acl.principal))
    if acl.host != WILDCARD:
        check_host(acl.host)
    return acl


def check_host(host: str) -> None:
    """Raise unless the host of an ACL is an address, written as those of clients are.

    Hosts are compared as text: a rule for another spelling of an address would never apply.
    """
    try:
        written = plain_address(host)
    except ValueError:
        raise InvalidRequest(
            f"host of an ACL must be {WILDCARD!r} or an IP address, got {host[:300]!r}"
        ) from None
    if written != host:
        raise InvalidRequest(f"host of an ACL must be written {written!r}, got {host[:300]!r}")


def plain_address(host: str) -> str:
    """Return the one spelling of an address; raise `ValueError` if it is none.

    An IPv4 client of a socket for both families has an address within IPv6; it is the same client.
    """
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
