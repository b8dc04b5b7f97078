"""The gate: decides what a caller may do. All servers ask it before they look anything up.

Rules and credentials are stored in the metadata, followed there, and kept in memory, so that a
decision needs no I/O. Each change of the rules raises `version`, which drops the decisions that
callers remember. Each change calls the listeners, which close the connections whose login has
ended: of a token that was revoked or expired, of a password that was changed.

A node without logins has no gate.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from millstream.broker.access.acls import (
    Acl,
    AclFilter,
    Acls,
    check_acl,
)
from millstream.broker.access.caller import DECISIONS_MAX, Caller
from millstream.broker.access.counters import AccessCounters
from millstream.broker.access.credentials import (
    CLEAR_TEXT,
    ScramCredential,
    ScramMechanism,
    ScramShape,
)
from millstream.broker.access.principal import NODE, USER, Principal, check_name
from millstream.broker.access.resources import (
    CLUSTER,
    WORDS,
    Operation,
    Resource,
    ResourceType,
)
from millstream.broker.access.rows import (
    ACLS_PREFIX,
    PREFIX,
    SCRAM_PREFIX,
    TOKENS_PREFIX,
    acl_key,
    decode_acl,
    decode_scram,
    decode_token,
    encode_acl,
    encode_scram,
    encode_token,
    scram_key,
    scram_key_parts,
    token_key,
)
from millstream.broker.access.sasl.failure import LoginFailed
from millstream.broker.access.tokens import (
    ID_BYTES,
    ID_PATTERN,
    SCOPES,
    SECRET_BYTES,
    TOKEN_PREFIX,
    Scope,
    Token,
    check_limits,
    digest_of,
    format_token,
    is_same_digest,
    split_token,
)
from millstream.clock import Clock, Timer, Timers
from millstream.errors import (
    AccessDenied,
    ClusterAccessDenied,
    GroupAccessDenied,
    InvalidRequest,
    MillstreamError,
    NotAuthenticated,
    TopicAccessDenied,
    TransactionalIdAccessDenied,
    UnknownCredential,
    UnknownTopic,
)
from millstream.metadata.interface import ABSENT, Compare, Metadata, MetadataChange, Watch

if TYPE_CHECKING:
    from millstream.broker.access.jwt.jwt_logins import JwtLogins

logger = logging.getLogger(__name__)

ACLS_MAX = 10_000
TOKENS_MAX = 10_000
USERS_MAX = 10_000
"""Limits: all of a kind have to fit in memory, and in one response."""

REVISIONS_MAX = 100_000
"""Keys whose last revision is remembered, deleted ones among them."""

CALLERS_MAX = 10_000
"""Callers that are remembered between requests by HTTP."""

TIMER_SECONDS_MAX = 3600.0
"""How long a timer for an expiry may run: the wall clock may jump meanwhile."""

_EXPIRY_STEP_SECONDS = 0.5
"""How often expiries are looked for at most."""

DENIALS: dict[ResourceType, type[AccessDenied]] = {
    ResourceType.TOPIC: TopicAccessDenied,
    ResourceType.GROUP: GroupAccessDenied,
    ResourceType.CLUSTER: ClusterAccessDenied,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAccessDenied,
}

OPEN_READS: dict[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset({Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}),
    ResourceType.GROUP: frozenset({Operation.DESCRIBE}),
}
"""What everyone may do if reads are open. Committing offsets is a write. Describing the cluster
lists its users, tokens and ACLs, so it is not a read.
"""

T = TypeVar("T")


class Access:
    """Decides what callers may do, and administers rules and credentials."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        clock: Clock,
        timers: Timers,
        super_users: Iterable[str] = (),
        are_reads_open: bool = False,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._timers = timers
        self._super_users = frozenset(super_users)
        self.are_reads_open = are_reads_open
        self._draw = draw
        self._acls = Acls()
        self._acls_by_key: dict[str, Acl] = {}
        self._tokens: dict[str, Token] = {}
        self._scram: dict[tuple[str, str], ScramCredential] = {}
        self._shapes: Mapping[str, Sequence[ScramShape]] | None = None
        """Remembered until a credential changes."""
        self._revisions: dict[str, int] = {}
        self._unreadable: set[str] = set()
        """ACLs that this release cannot read. They may deny something, so nothing is allowed."""
        self._callers: dict[tuple[str, str], Caller] = {}
        self._watch: Watch | None = None
        self._timer: Timer | None = None
        self.version = 0
        """Rises with each change of the rules."""
        self.on_change: list[Callable[[], None]] = []
        """Called after each change of rules and credentials, and when a token has expired."""
        self.is_internal: Callable[[str], bool] = lambda _: False
        """Whether a topic belongs to the cluster itself."""
        self.counters = AccessCounters()
        self.jwt: JwtLogins | None = None
        """Logins by JWTs; None if no issuer is set."""
        self._jwt_ends: set[int] = set()
        """Seconds in which logins by JWTs end, that this node was shown by HTTP."""

    def use_jwts(self, logins: JwtLogins) -> None:
        """Let callers log in by JWTs."""
        self.jwt = logins
        logins.keys.on_change = self._callers.clear  # A key may have been withdrawn.

    async def open(self) -> None:
        """Load rules and credentials, and follow their changes from now on."""
        self._watch = self._metadata.watch(PREFIX, self._on_change)
        for entry in await self._metadata.list(PREFIX):
            self._apply(entry.key, entry.value, entry.revision)
        self._changed()

    def close(self) -> None:
        """Stop following changes."""
        if self._watch is not None:
            self._watch.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Deciding.

    def check(self, caller: Caller, operation: Operation, resource: Resource) -> bool:
        """Return whether a caller may do an operation on a resource, existing or not."""
        if caller.version != self.version or len(caller.decisions) > DECISIONS_MAX:
            caller.forget(self.version)
        key = (operation, resource)
        decision = caller.decisions.get(key)
        if decision is None:
            decision = caller.decisions[key] = self._decide(caller, operation, resource)
        return decision

    def may_write(self, caller: Caller, topic_name: str) -> bool:
        """Return whether a caller may write to a topic; the same as `check`, in less time."""
        if caller.version == self.version and topic_name in caller.writable:
            return True
        resource = Resource(ResourceType.TOPIC, topic_name)
        is_allowed = self.check(caller, Operation.WRITE, resource)
        if is_allowed:
            caller.writable.add(topic_name)
        return is_allowed

    def _decide(self, caller: Caller, operation: Operation, resource: Resource) -> bool:
        principal, token = caller.principal, caller.token
        if principal.kind == NODE:
            return True
        if token is not None and not token.permits(operation, resource):
            return False
        if self.is_super(principal):
            return True
        if self._unreadable or self._is_closed(operation, resource):
            return False
        if self.are_reads_open and operation in OPEN_READS.get(resource.kind, ()):
            return not self._acls.denies(principal, caller.host, operation, resource)
        return self._acls.allows(principal, caller.host, operation, resource)

    def _is_closed(self, operation: Operation, resource: Resource) -> bool:
        """Return whether nobody but super users may do this: internal topics can only be seen."""
        return (
            resource.kind is ResourceType.TOPIC
            and operation not in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
            and self.is_internal(resource.name)
        )

    def check_below(
        self, caller: Caller, operation: Operation, kind: ResourceType, prefix: str
    ) -> bool:
        """Return whether a caller may do an operation on all resources with a prefix."""
        principal, token = caller.principal, caller.token
        if principal.kind == NODE:
            return True
        if token is not None and not token.permits(operation, Resource(kind, prefix)):
            return False
        if self.is_super(principal):
            return True
        if self._unreadable:
            return False
        return self._acls.allows_below(principal, caller.host, operation, kind, prefix)

    def check_some(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """Return whether a caller may do an operation on some resource of a type."""
        principal, token = caller.principal, caller.token
        if principal.kind == NODE:
            return True
        if token is not None and token.scopes:
            permitted = (SCOPES[scope] for scope in token.scopes)
            if not any(operation in operations for operations in permitted):
                return False
        if self.is_super(principal):
            return True
        if self._unreadable:
            return False
        return self._acls.allows_some(principal, caller.host, operation, kind)

    def is_super(self, principal: Principal) -> bool:
        """Return whether a principal may do everything, whatever the ACLs say."""
        return principal.kind == USER and principal.name in self._super_users

    def require(self, caller: Caller, operation: Operation, resource: Resource) -> None:
        """Raise unless a caller may do an operation on a resource."""
        if not self.check(caller, operation, resource):
            raise self.denial(caller, operation, resource)

    def denial(self, caller: Caller, operation: Operation, resource: Resource) -> MillstreamError:
        """Record that a caller is refused, and return the error.

        If the caller may not even know of a topic, the error is that of a topic that does not
        exist, in the same words. Whether it exists does not matter to one who wants to create it.
        """
        self.counters.refusals[WORDS[resource.kind]] += 1
        key = (operation, resource)
        if key not in caller.refused:
            if len(caller.refused) < DECISIONS_MAX:
                caller.refused.add(key)
            logger.warning(
                "access was refused",
                extra={
                    **identity_of(caller),
                    "operation": operation.name.lower(),
                    "resource": str(resource),
                },
            )
        may_hide = resource.kind is ResourceType.TOPIC and operation is not Operation.CREATE
        if may_hide and not self.check(caller, Operation.DESCRIBE, resource):
            return UnknownTopic(f"topic {resource.name[:300]!r} does not exist")
        return DENIALS[resource.kind](
            f"{caller.principal} may not {operation.name.lower().replace('_', ' ')}"
            f" {_shown(resource)}"
        )

    def operations_on(self, caller: Caller, resource: Resource, among: Iterable[Operation]) -> int:
        """Return the operations that a caller may do, as Kafka's set of bits."""
        allowed = (item for item in among if self.check(caller, item, resource))
        return sum(1 << operation for operation in allowed)

    # Logging in.

    def log_in_by_token(self, text: str, host: str) -> Caller:
        """Return the caller that a token belongs to; raise `NotAuthenticated` if it has none."""
        if self.jwt is not None and not text.startswith(TOKEN_PREFIX):
            return self._log_in_by_jwt(self.jwt, text, host)
        parts = split_token(text)
        token = None if parts is None else self._tokens.get(parts[0])
        # An unknown id is compared with something too: it takes as long as a wrong secret.
        stored = _NO_DIGEST if token is None else token.digest
        is_same = is_same_digest(stored, _NO_DIGEST if parts is None else parts[1])
        if token is None or not is_same or token.is_expired(self._clock.wall_ms()):
            self.counters.failed_logins["token"] += 1
            token_id = None if parts is None else parts[0]
            logger.warning(
                "a login failed", extra={"method": "token", "token": token_id, "host": host}
            )
            raise NotAuthenticated("the token is not valid: it is unknown, revoked or expired")
        key = (token.id, host)
        caller = self._callers.get(key)
        if caller is None or caller.token is not token:
            caller = self.caller_of_token(token, host)
            if len(self._callers) >= CALLERS_MAX:
                self._callers.clear()
            self._callers[key] = caller
            self.note_login(caller, "token")
        return caller

    def _log_in_by_jwt(self, logins: JwtLogins, text: str, host: str) -> Caller:
        key = (f"jwt {digest_of(text).hex()}", host)  # Not the id of a token.
        caller = self._callers.get(key)
        if caller is not None and self.is_current(caller):
            return caller
        try:
            login = logins.check(text)
        except LoginFailed as failed:
            self.note_failed_login(failed.user, host, "OAUTHBEARER", failed.reason)
            raise NotAuthenticated("the JWT is not valid") from None
        caller = Caller(Principal(USER, login.user), host, expires_ms=login.expires_ms)
        if len(self._callers) >= CALLERS_MAX:
            self._callers.clear()
        self._callers[key] = caller
        self._jwt_ends.add(-(-login.expires_ms // 1000))
        self._watch_expiry()
        self.note_login(caller, "OAUTHBEARER")
        return caller

    def caller_of_token(self, token: Token, host: str) -> Caller:
        """Return a caller that has logged in by a token."""
        return Caller(
            token.principal, host, token=token, credential=token, expires_ms=token.expires_ms
        )

    def caller_by_token_id(self, token_id: str, host: str) -> Caller:
        """Return the caller of a token that another node has checked."""
        token = self._tokens.get(token_id)
        if token is None or token.is_expired(self._clock.wall_ms()):
            raise NotAuthenticated("the token is not valid: it is unknown, revoked or expired")
        return self.caller_of_token(token, host)

    def anonymous(self, host: str) -> Caller:
        """Return the caller of an address that has not logged in."""
        key = ("", host)
        caller = self._callers.get(key)
        if caller is None:
            if len(self._callers) >= CALLERS_MAX:
                self._callers.clear()
            caller = self._callers[key] = Caller(host=host)
        return caller

    def log_in_by_certificate(self, name: str, host: str) -> Caller:
        """Return the caller of a user that has shown a certificate, which a server has checked."""
        key = (f"certificate {name}", host)  # Not the id of a token.
        caller = self._callers.get(key)
        if caller is None:
            if len(self._callers) >= CALLERS_MAX:
                self._callers.clear()
            caller = self._callers[key] = Caller(Principal(USER, name), host)
            self.note_login(caller, "certificate")
        return caller

    def note_login(self, caller: Caller, method: str) -> None:
        """Record that a caller has logged in."""
        self.counters.logins[method] += 1
        logger.info("logged in", extra={"method": method, **identity_of(caller)})

    def note_failed_login(self, user: str, host: str, method: str, reason: str = "") -> None:
        """Record that a login failed. `user` is what the client claims to be."""
        self.counters.failed_logins[method] += 1
        more = {"reason": reason} if reason else {}
        fields = {"method": method, "user": user, "host": host, **more}
        logger.warning("a login failed", extra=fields)

    def is_current(self, caller: Caller) -> bool:
        """Return whether the login of a caller is still valid."""
        if caller.expires_ms is not None and self._clock.wall_ms() >= caller.expires_ms:
            return False
        credential = caller.credential
        if isinstance(credential, Token):
            return self._tokens.get(credential.id) == credential
        if isinstance(credential, ScramCredential):
            return credential in self.scram_of(caller.principal.name).values()
        return True

    # ACLs.

    def acls(self, wanted: AclFilter = AclFilter()) -> Sequence[Acl]:  # noqa: B008 - immutable.
        """Return the ACLs that a filter selects, sorted."""
        return self._acls.selected(wanted)

    async def create_acl(self, acl: Acl, *, by: Caller) -> None:
        """Store an ACL; succeed without changes if there is such a one."""
        check_acl(acl)
        if acl in self._acls:
            return
        if len(self._acls) >= ACLS_MAX:
            raise InvalidRequest(f"there are {len(self._acls)} ACLs, limit is {ACLS_MAX}")
        await self._put(acl_key(acl), encode_acl(acl))
        self._note_change("acl", "created", by, acl=_acl_words(acl))

    async def delete_acl(self, acl: Acl, *, by: Caller) -> None:
        """Delete an ACL; succeed without changes if there is no such one."""
        await self._delete(acl_key(acl))
        self._note_change("acl", "deleted", by, acl=_acl_words(acl))

    # Tokens.

    def tokens(self) -> Sequence[Token]:
        """Return all tokens, by the time of their creation."""
        return sorted(self._tokens.values(), key=lambda token: (token.created_ms, token.id))

    async def create_token(
        self,
        principal: Principal,
        *,
        by: Caller,
        lifetime_ms: int | None = None,
        scopes: frozenset[Scope] = frozenset(),
        prefixes: tuple[str, ...] = (),
        note: str = "",
    ) -> tuple[Token, str]:
        """Create a token of a user; return it, and its text, which is not stored."""
        check_limits(scopes=scopes, prefixes=prefixes, note=note, lifetime_ms=lifetime_ms)
        check_name(principal.name)
        self._check_promotion(principal, by, "create a token of")
        if len(self._tokens) >= TOKENS_MAX:
            raise InvalidRequest(f"there are {len(self._tokens)} tokens, limit is {TOKENS_MAX}")
        token, text = make_token(
            principal,
            self._draw,
            now_ms=self._clock.wall_ms(),
            lifetime_ms=lifetime_ms,
            scopes=scopes,
            prefixes=prefixes,
            note=note,
        )
        await self._put(token_key(token.id), encode_token(token), is_new=True)
        self._note_change("token", "created", by, token=token.id, of=str(principal))
        return token, text

    async def revoke_token(self, token_id: str, *, by: Caller) -> None:
        """Delete a token. Its connections are closed, at this node before this returns."""
        if not ID_PATTERN.fullmatch(token_id) or token_id not in self._tokens:
            raise UnknownCredential(f"token {token_id[:100]!r} does not exist")
        await self._delete(token_key(token_id))
        self._note_change("token", "revoked", by, token=token_id)

    # SCRAM credentials.

    def users(self) -> Sequence[str]:
        """Return the users that have a password, sorted."""
        return sorted({name for name, _ in self._scram})

    def scram_of(self, name: str) -> dict[ScramMechanism, ScramCredential]:
        """Return the SCRAM credentials of a user, by mechanism."""
        return {
            mechanism: credential
            for mechanism in ScramMechanism
            if (credential := self._scram.get((name, mechanism.value))) is not None
        }

    def scram_shapes(self) -> Mapping[str, Sequence[ScramShape]]:
        """Return which shapes the stored credentials have, each once.

        By the name of a mechanism: those of its credentials. By `PLAIN`: those that passwords in
        clear text are compared with, the first of each user.
        """
        if self._shapes is None:
            shapes: dict[str, set[ScramShape]] = {}
            for name in {name for name, _ in self._scram}:
                stored = [
                    ScramShape(mechanism, credential.iterations)
                    for mechanism, credential in self.scram_of(name).items()
                ]
                for shape in stored:
                    shapes.setdefault(shape.mechanism.value, set()).add(shape)
                shapes.setdefault(CLEAR_TEXT, set()).add(stored[0])
            self._shapes = {
                key: sorted(found, key=lambda shape: (shape.mechanism.value, shape.iterations))
                for key, found in shapes.items()
            }
        return self._shapes

    async def put_scram(
        self, name: str, mechanism: ScramMechanism, credential: ScramCredential, *, by: Caller
    ) -> None:
        """Store the credential of a user; connections that used an older one are closed."""
        principal = Principal(USER, check_name(name))
        self._check_promotion(principal, by, "change the password of")
        if (name, mechanism.value) not in self._scram and len(self._scram) >= USERS_MAX:
            raise InvalidRequest(f"there are {len(self._scram)} credentials, limit is {USERS_MAX}")
        await self._put(scram_key(name, mechanism.value), encode_scram(credential))
        self._note_change("user", "changed", by, user=name, mechanism=mechanism.value)

    async def delete_scram(self, name: str, mechanism: ScramMechanism, *, by: Caller) -> None:
        """Delete the credential of a user; connections that used it are closed."""
        principal = Principal(USER, check_name(name))
        self._check_promotion(principal, by, "change the password of")
        if (name, mechanism.value) not in self._scram:
            raise UnknownCredential(f"user {name[:300]!r} has no credential for {mechanism.value}")
        await self._delete(scram_key(name, mechanism.value))
        self._note_change("user", "deleted", by, user=name, mechanism=mechanism.value)

    async def set_password(
        self, name: str, credentials: Mapping[ScramMechanism, ScramCredential], *, by: Caller
    ) -> None:
        """Give a user these credentials and no others, in one step.

        Connections that used an older one are closed. Without credentials the user has no password
        any more; raises `UnknownCredential` if it had none.
        """
        principal = Principal(USER, check_name(name))
        self._check_promotion(principal, by, "change the password of")
        stored = self.scram_of(name)
        if not credentials and not stored:
            raise UnknownCredential(f"user {name[:300]!r} has no password")
        if len(self._scram) - len(stored) + len(credentials) > USERS_MAX:
            raise InvalidRequest(f"there are {len(self._scram)} credentials, limit is {USERS_MAX}")
        puts = {
            scram_key(name, mechanism.value): encode_scram(credential)
            for mechanism, credential in credentials.items()
        }
        deletes = [scram_key(name, mechanism.value) for mechanism in ScramMechanism]
        deletes = [key for key in deletes if key not in puts]
        revision = await self._metadata.transact(puts=puts, deletes=deletes)
        assert revision is not None, "nothing was compared"
        for key in deletes:
            self._follow(key, None, revision)
        for key, value in puts.items():
            self._follow(key, value, revision)
        outcome = "changed" if credentials else "deleted"
        mechanisms = ", ".join(mechanism.value for mechanism in credentials or stored)
        self._note_change("user", outcome, by, user=name, mechanism=mechanisms)

    def _check_promotion(self, principal: Principal, by: Caller, words: str) -> None:
        """Raise if someone makes a login of a super user and is none: it could be one then."""
        is_trusted = by.principal.kind == NODE or self.is_super(by.principal)
        if self.is_super(principal) and not is_trusted:
            raise ClusterAccessDenied(f"only a super user can {words} {principal}")

    # Storing.

    async def _put(self, key: str, value: bytes, *, is_new: bool = False) -> None:
        compares = [Compare(key, ABSENT)] if is_new else []
        revision = await self._metadata.transact(compares=compares, puts={key: value})
        if revision is None:
            raise InvalidRequest(f"{key} exists already")
        self._follow(key, value, revision)

    async def _delete(self, key: str) -> None:
        revision = await self._metadata.transact(deletes=[key])
        if revision is not None:
            self._follow(key, None, revision)

    def _on_change(self, change: MetadataChange) -> None:
        self._follow(change.key, change.value, change.revision)

    def _follow(self, key: str, value: bytes | None, revision: int) -> None:
        """Apply a change that this node has made or learned of, unless a newer one is known."""
        if revision < self._revisions.get(key, ABSENT):
            return
        self._apply(key, value, revision)
        self._changed()

    def _apply(self, key: str, value: bytes | None, revision: int) -> None:
        # Also kept of deleted keys: an own change may be reported after a later one of another
        # node, and must not bring back what that one deleted.
        self._revisions.pop(key, None)
        self._revisions[key] = revision
        if len(self._revisions) > REVISIONS_MAX:
            del self._revisions[next(iter(self._revisions))]
        if key.startswith(ACLS_PREFIX):
            self._apply_acl(key, value)
        elif key.startswith(TOKENS_PREFIX):
            token = _read(key, value, decode_token)
            _set(self._tokens, key.removeprefix(TOKENS_PREFIX), token)
        elif key.startswith(SCRAM_PREFIX):
            _set(self._scram, scram_key_parts(key), _read(key, value, decode_scram))
            self._shapes = None

    def _apply_acl(self, key: str, value: bytes | None) -> None:
        self._unreadable.discard(key)
        old = self._acls_by_key.pop(key, None)
        if old is not None:
            self._acls.remove(old)
        if value is None:
            return
        new = _read(key, value, decode_acl)
        if new is None:
            self._unreadable.add(key)
        else:
            self._acls.add(new)
            self._acls_by_key[key] = new

    def _changed(self) -> None:
        self.version += 1
        # The others stay logged in: they would be logged and counted again.
        for key in [key for key, caller in self._callers.items() if not self.is_current(caller)]:
            del self._callers[key]
        self._watch_expiry()
        for listener in self.on_change:
            listener()

    # Expiry.

    def _watch_expiry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ms = self._clock.wall_ms()
        later = [
            token.expires_ms
            for token in self._tokens.values()
            if token.expires_ms is not None and token.expires_ms > now_ms
        ]
        self._jwt_ends = {second for second in self._jwt_ends if second * 1000 > now_ms}
        later += [second * 1000 for second in self._jwt_ends]
        if later:
            seconds = max((min(later) - now_ms) / 1000, _EXPIRY_STEP_SECONDS)
            self._timer = self._timers.call_later(min(seconds, TIMER_SECONDS_MAX), self._changed)

    # Audit.

    def note_change(self, by: Caller, operation: Operation, resource: Resource) -> None:
        """Record that a caller has created, changed or deleted something."""
        self._note_change(
            WORDS[resource.kind],
            "changed",
            by,
            operation=operation.name.lower(),
            resource=str(resource),
        )

    def _note_change(self, kind: str, outcome: str, by: Caller, **fields: object) -> None:
        self.counters.changes[kind] += 1
        logger.info(f"{kind} was {outcome}", extra={**identity_of(by), **fields})


_NO_DIGEST = bytes(32)


def make_token(
    principal: Principal,
    draw: Callable[[int], bytes],
    *,
    now_ms: int,
    lifetime_ms: int | None = None,
    scopes: frozenset[Scope] = frozenset(),
    prefixes: tuple[str, ...] = (),
    note: str = "",
) -> tuple[Token, str]:
    """Return a new token and its text."""
    text = format_token(draw(ID_BYTES), draw(SECRET_BYTES))
    parts = split_token(text)
    assert parts is not None
    token = Token(
        id=parts[0],
        principal=principal,
        digest=parts[1],
        created_ms=now_ms,
        expires_ms=None if lifetime_ms is None else now_ms + lifetime_ms,
        scopes=scopes,
        prefixes=prefixes,
        note=note,
    )
    return token, text


def identity_of(caller: Caller) -> dict[str, object]:
    """Return who a caller is, for a log event."""
    token = {} if caller.token is None else {"by_token": caller.token.id}
    return {"principal": str(caller.principal), "host": caller.host, **token}


def _acl_words(acl: Acl) -> str:
    kind, name, pattern_type = acl.pattern
    return (
        f"{acl.permission.name} {acl.principal} {acl.operation.name} {kind.name} {name}"
        f" {pattern_type.name} from {acl.host}"
    )


def _shown(resource: Resource) -> str:
    if resource == CLUSTER:
        return "the cluster"
    return f"{WORDS[resource.kind]} {resource.name[:300]!r}"


def _read(key: str, value: bytes | None, decode: Callable[[str, bytes], T]) -> T | None:
    """Decode a row; a row that cannot be read is logged, and counts as absent."""
    if value is None:
        return None
    try:
        return decode(key, value)
    except MillstreamError as error:
        logger.error("a rule or credential cannot be read: %s", error)  # noqa: TRY400
        return None


K = TypeVar("K")


def _set(values: dict[K, T], key: K, value: T | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
