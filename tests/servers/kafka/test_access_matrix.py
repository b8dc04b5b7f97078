"""Who may do what at the Kafka server: every API, version and resource, from the table of needs.

Each cell sends a sample request that names one resource of each type as a caller with known rights,
and looks at the error codes of the response. Other errors, such as that of an unknown member, are
what an allowed request gets.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import ANONYMOUS, NODE, Principal, user
from millstream.broker.access.resources import CLUSTER_NAME, Operation, ResourceType
from millstream.broker.broker import Broker
from millstream.config.schema import AccessConfig, KafkaConfig
from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.codec.message import decode, encode
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.servers.api_needs import ApiNeeds
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.kafka.access_table import NEEDS
from millstream.servers.kafka.apis import HANDLERS
from millstream.servers.kafka.fetch_session import FetchSessions
from millstream.servers.kafka.request_context import RequestContext

from .sample_requests import GROUP, TOPIC, TRANSACTIONAL_ID, sample

TYPES = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.CLUSTER,
)
RESOURCES = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONAL_ID,
    ResourceType.CLUSTER: CLUSTER_NAME,
}
REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
ABSENT = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}

SILENT = {
    (16, ResourceType.GROUP),
    (16, ResourceType.CLUSTER),
    (65, ResourceType.TOPIC),
    (66, ResourceType.TRANSACTIONAL_ID),
    (69, ResourceType.TOPIC),
    (75, ResourceType.TOPIC),
}
"""Needs that leave something out of a response, instead of refusing; other tests look at those."""


def needed(key: int, kind: ResourceType) -> Operation | None:
    row = NEEDS[key]
    return {
        ResourceType.TOPIC: row.topic,
        ResourceType.GROUP: row.group,
        ResourceType.TRANSACTIONAL_ID: row.transactional_id,
        ResourceType.CLUSTER: row.cluster,
    }[kind]


OFFSET_COMMIT, OFFSET_DELETE = 8, 47

UNNAMED = {(10, 0, ResourceType.TRANSACTIONAL_ID)}
"""Versions that cannot name a resource of the type."""

CELLS = [
    pytest.param(key, version, kind, id=f"{APIS[key].name}-{version}-{kind.name.lower()}")
    for key in HANDLERS
    for kind in TYPES
    if needed(key, kind) is not None
    for version in sorted({APIS[key].versions.first, APIS[key].versions.last})
    if (key, version, kind) not in UNNAMED
]


def test_every_api_has_a_row_and_no_row_is_left_over():
    assert set(NEEDS) == set(HANDLERS)


def test_a_row_names_at_least_one_right_or_says_that_there_is_none():
    for key, row in NEEDS.items():
        operations = [needed(key, kind) for kind in TYPES]
        assert any(operations) or row.is_open or row.is_filtered, APIS[key].name
    assert {APIS[key].name for key, row in NEEDS.items() if row.is_open} == {
        "SaslHandshake",
        "ApiVersions",
        "SaslAuthenticate",
    }


class Gate:
    """A node with a topic, and callers with rights of their own."""

    def __init__(self, path) -> None:
        self.loop = asyncio.new_event_loop()
        self.broker: Broker = self.run(
            Broker.open(str(path), access_config=AccessConfig(enabled=True, super_users=("root",)))
        )
        self.root = Caller(user("root"), "10.0.0.1")
        self.topic = self.run(self.broker.topics.create(TOPIC, partitions=1))
        self.sessions = FetchSessions(10)
        self.count = 0
        self.ask(self.root, OFFSET_COMMIT, 9, ResourceType.GROUP)  # It makes the group.

    def run(self, work):
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self.broker.close())
        self.loop.close()

    def caller(self, *rights: tuple[ResourceType, Operation]) -> Caller:
        """A new user, who has these rights to the resources of the samples."""
        self.count += 1
        principal = user(f"user-{self.count}")
        for kind, operation in rights:
            acl = Acl(
                ResourcePattern(kind, RESOURCES[kind]), principal, "*", operation, Permission.ALLOW
            )
            self.run(self.broker.access.create_acl(acl, by=self.root))
        return Caller(principal, "10.0.0.2")

    def ask(self, caller: Caller, key: int, version: int, kind: ResourceType | None) -> Any:
        if key == OFFSET_DELETE:  # Another cell may have deleted the group.
            self.ask(self.root, OFFSET_COMMIT, 9, ResourceType.GROUP)
        request = sample(key, version, kind, self.topic.id)
        request = decode(type(request), memoryview(encode(request, version)), version)
        context = RequestContext(
            self.broker,
            KafkaConfig(),
            self.sessions,
            version,
            "client",
            caller,
            "10.0.0.2",
            access=self.broker.access,
            needs=NEEDS[key],
        )
        return self.run(self._answer(key, request, context))

    async def _answer(self, key, request, context) -> Any:
        answer = HANDLERS[key](request, context)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, DeferredResponse):
            done = asyncio.get_running_loop().create_future()
            answer.then(done.set_result)
            answer = await done
        return answer


@pytest.fixture(scope="module")
def gate(tmp_path_factory) -> Iterator[Gate]:
    gate = Gate(tmp_path_factory.mktemp("gate"))
    yield gate
    gate.close()


def codes_in(value: Any) -> set[ErrorCode]:
    """Return all error codes of a response, however deep."""
    if isinstance(value, tuple | list):
        return {code for item in value for code in codes_in(item)}
    if not dataclasses.is_dataclass(value):
        return set()
    codes: set[ErrorCode] = set()
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if field.name.endswith("error_code"):
            codes |= {ErrorCode(inner)} - {ErrorCode.NONE}
        else:
            codes |= codes_in(inner)
    return codes


def others(key: int, kind: ResourceType) -> list[tuple[ResourceType, Operation]]:
    """All rights that an API needs but for those to one type of resource."""
    row: ApiNeeds = NEEDS[key]
    exempt = {kind}
    if row.is_cluster_enough and kind is not ResourceType.TRANSACTIONAL_ID:
        exempt = {ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER}
    return [
        (other, operation)
        for other in TYPES
        if other not in exempt and (operation := needed(key, other)) is not None
    ]


def is_refused(codes: set[ErrorCode], kind: ResourceType, key: int) -> bool:
    if kind is ResourceType.TOPIC and NEEDS[key].topic is not Operation.CREATE:
        if key == 22:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED in codes
        return bool(codes & ABSENT)
    if key == 19:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes
    return REFUSALS[kind] in codes


def is_allowed(codes: set[ErrorCode]) -> bool:
    return not codes & {*REFUSALS.values(), *ABSENT}


@pytest.mark.parametrize(("key", "version", "kind"), CELLS)
def test_a_caller_without_the_right_is_refused(gate, key, version, kind):
    if (key, kind) in SILENT:
        return
    for rights in ([], others(key, kind)):
        codes = codes_in(gate.ask(gate.caller(*rights), key, version, kind))
        first = kind if rights else None
        if first is None:  # Without any right, the first one that is missing is reported.
            assert not is_allowed(codes), (APIS[key].name, codes)
        else:
            assert is_refused(codes, kind, key), (APIS[key].name, codes)


@pytest.mark.parametrize(("key", "version", "kind"), CELLS)
def test_an_anonymous_caller_is_refused(gate, key, version, kind):
    if (key, kind) not in SILENT:
        codes = codes_in(gate.ask(Caller(ANONYMOUS, "10.0.0.2"), key, version, kind))
        assert not is_allowed(codes), (APIS[key].name, codes)


@pytest.mark.parametrize(("key", "version", "kind"), CELLS)
def test_a_caller_with_exactly_the_needed_rights_is_let_in(gate, key, version, kind):
    rights = [(other, op) for other in TYPES if (op := needed(key, other)) is not None]
    if key == 20:
        pytest.skip("it would delete the topic of the other cells")
    codes = codes_in(gate.ask(gate.caller(*rights), key, version, kind))
    allowed_beside = {ErrorCode.TOPIC_AUTHORIZATION_FAILED} if key == 19 else set()
    assert is_allowed(codes - allowed_beside), (APIS[key].name, codes)


@pytest.mark.parametrize(("key", "version", "kind"), CELLS)
def test_other_rights_to_the_same_resource_do_not_help(gate, key, version, kind):
    """A reader may not write, a writer may not read, neither may administer."""
    wanted = needed(key, kind)
    if (key, kind) in SILENT:
        return
    implied_by = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }.get(wanted, set())
    wrong = {
        ResourceType.TOPIC: [Operation.READ, Operation.WRITE, Operation.ALTER_CONFIGS],
        ResourceType.GROUP: [Operation.READ, Operation.DELETE],
        ResourceType.TRANSACTIONAL_ID: [Operation.DESCRIBE],
        ResourceType.CLUSTER: [Operation.CREATE, Operation.ALTER, Operation.DESCRIBE],
    }[kind]
    for operation in wrong:
        if operation is wanted or operation in implied_by:
            continue
        caller = gate.caller(*others(key, kind), (kind, operation))
        codes = codes_in(gate.ask(caller, key, version, kind))
        assert not is_allowed(codes), (APIS[key].name, operation.name, codes)


@pytest.mark.parametrize(("key", "version", "kind"), CELLS)
@pytest.mark.parametrize("principal", [user("root"), Principal(NODE, "2")])
def test_super_users_and_nodes_are_let_in(gate, principal, key, version, kind):
    if key == 20:
        return
    codes = codes_in(gate.ask(Caller(principal, "10.0.0.2"), key, version, kind))
    assert is_allowed(codes), (APIS[key].name, codes)


@pytest.mark.parametrize("key", [key for key, row in NEEDS.items() if row.is_open])
def test_what_is_open_is_open_to_everyone(gate, key):
    answer = gate.ask(Caller(ANONYMOUS, "10.0.0.2"), key, APIS[key].versions.last, None)
    assert is_allowed(codes_in(answer))


def names_in(value: Any) -> set[str]:
    """Return all texts of a response, however deep."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, tuple | list):
        return {name for item in value for name in names_in(item)}
    if not dataclasses.is_dataclass(value):
        return set()
    return {
        name for field in dataclasses.fields(value) for name in names_in(getattr(value, field.name))
    }


@pytest.mark.parametrize("key", [3, 75])
def test_lists_of_topics_have_only_those_that_the_caller_may_describe(gate, key):
    version = APIS[key].versions.last
    everything = {3: {"topics": None}, 75: {"topics": ()}}[key]

    def listed(caller):
        request = dataclasses.replace(sample(key, version, None, gate.topic.id), **everything)
        context = RequestContext(
            gate.broker, KafkaConfig(), gate.sessions, version, "c", caller,
            access=gate.broker.access, needs=NEEDS[key],
        )  # fmt: skip
        return names_in(gate.run(gate._answer(key, request, context)))

    assert TOPIC not in listed(gate.caller())
    assert TOPIC not in listed(Caller(ANONYMOUS, ""))
    assert TOPIC in listed(gate.caller((ResourceType.TOPIC, Operation.DESCRIBE)))
    assert TOPIC in listed(gate.root)


def test_lists_of_groups_have_only_those_that_the_caller_may_describe(gate):
    gate.ask(gate.root, 8, 9, ResourceType.GROUP)  # A commit makes the group.
    version = APIS[16].versions.last

    def listed(caller):
        return names_in(gate.ask(caller, 16, version, None))

    assert GROUP in listed(gate.root)
    assert GROUP not in listed(gate.caller())
    assert GROUP in listed(gate.caller((ResourceType.GROUP, Operation.DESCRIBE)))
    assert GROUP in listed(gate.caller((ResourceType.CLUSTER, Operation.DESCRIBE)))


def test_lists_of_transactions_have_only_those_that_the_caller_may_describe(gate):
    gate.ask(gate.root, 22, 4, ResourceType.TRANSACTIONAL_ID)

    def listed(caller):
        return names_in(gate.ask(caller, 66, APIS[66].versions.last, None))

    assert TRANSACTIONAL_ID in listed(gate.root)
    assert TRANSACTIONAL_ID not in listed(gate.caller())
    rights = (ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE)
    assert TRANSACTIONAL_ID in listed(gate.caller(rights))


def test_a_topic_that_exists_and_one_that_does_not_look_the_same_to_strangers(gate):
    for key in (0, 1, 2, 3, 8, 9, 20, 21, 23, 37, 47, 61):
        version = APIS[key].versions.first
        stranger = gate.caller((ResourceType.GROUP, Operation.ALL))
        existing = gate.ask(stranger, key, version, ResourceType.TOPIC)
        request = sample(key, version, ResourceType.TOPIC, gate.topic.id)
        absent = decode(
            type(request),
            memoryview(bytes(encode(request, version)).replace(b"orders", b"absent")),
            version,
        )
        context = RequestContext(
            gate.broker, KafkaConfig(), gate.sessions, version, "client", stranger, "10.0.0.2",
            access=gate.broker.access, needs=NEEDS[key],
        )  # fmt: skip
        other = gate.run(gate._answer(key, absent, context))
        shown = repr(existing).replace("orders", "absent")
        assert shown == repr(other), APIS[key].name


def test_a_refused_creation_creates_nothing(gate):
    caller = gate.caller((ResourceType.TOPIC, Operation.DESCRIBE))
    gate.ask(caller, 19, 7, ResourceType.TOPIC)
    names = {topic.name for topic in gate.broker.topics.all()}
    assert names == {TOPIC}
