"""DescribeClientQuotas and AlterClientQuotas, as clients see them."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.broker.quotas import DEFAULT, ClientQuotaEntity
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponent,
)
from millstream.servers.kafka.handlers.quotas import alter_client_quotas, describe_client_quotas
from tests.in_loop import in_loop
from tests.servers.kafka.socketless import HandlerNode, open_handler_node

EXACT, DEFAULT_ONLY, ANY = 0, 1, 2
EACH_VERSION = pytest.mark.parametrize("version", [0, 1])

Part = tuple[str, str | None]


async def describe(
    node: HandlerNode,
    *components: tuple[str, int, str | None],
    is_strict: bool = False,
    version: int = 1,
) -> Any:
    request = DescribeClientQuotasRequest(
        components=tuple(
            DescribeClientQuotasRequestComponent(entity_type=kind, match_type=how, match=name)
            for kind, how, name in components
        ),
        strict=is_strict,
    )
    return await node.ask(describe_client_quotas, request, version=version)


def shown(response: Any) -> dict[tuple[Part, ...], dict[str, float]]:
    assert response.error_code == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries
    }


async def alter(
    node: HandlerNode,
    *entries: tuple[list[Part], list[tuple[str, float, bool]]],
    is_validate_only: bool = False,
    version: int = 1,
) -> list[tuple[int, str | None]]:
    request = AlterClientQuotasRequest(
        entries=tuple(
            AlterClientQuotasRequestEntry(
                entity=tuple(
                    AlterClientQuotasRequestEntity(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ),
                ops=tuple(
                    AlterClientQuotasRequestOp(key=key, value=value, remove=is_removed)
                    for key, value, is_removed in changes
                ),
            )
            for entity, changes in entries
        ),
        validate_only=is_validate_only,
    )
    response = await node.ask(alter_client_quotas, request, version=version)
    found = [
        [(part.entity_type, part.entity_name) for part in entry.entity]
        for entry in response.entries
    ]
    assert found == [entity for entity, _ in entries]
    return [(entry.error_code, entry.error_message) for entry in response.entries]


RATE = [("producer_byte_rate", 1000.0, False)]


@EACH_VERSION
def test_quotas_are_set_shown_and_removed(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            user, both = [("user", "u")], [("client-id", None), ("user", "u")]
            changes = [*RATE, ("request_percentage", 12.5, False)]
            results = await alter(node, (user, changes), (both, RATE), version=version)
            assert results == [(0, None)] * 2
            assert shown(await describe(node, version=version)) == {
                (("user", "u"),): {"producer_byte_rate": 1000.0, "request_percentage": 12.5},
                (("user", "u"), ("client-id", None)): {"producer_byte_rate": 1000.0},
            }
            await alter(node, (user, [("producer_byte_rate", 0.0, True)]), version=version)
            await alter(node, (both, [("producer_byte_rate", 0.0, True)]), version=version)
            assert shown(await describe(node, version=version)) == {
                (("user", "u"),): {"request_percentage": 12.5}
            }

    run()


@in_loop
async def test_only_validating_sets_nothing():
    async with open_handler_node() as node:
        assert await alter(node, ([("user", "u")], RATE), is_validate_only=True) == [(0, None)]
        assert node.quotas.is_empty
        ((code, _),) = await alter(
            node, ([("user", "u")], [("x", 1.0, False)]), is_validate_only=True
        )
        assert code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("entity", "changes", "message"),
    [
        ([], RATE, "requires a user, a client id, or both"),
        ([("ip", "10.0.0.1")], RATE, "user or client-id, got 'ip': quotas for addresses"),
        ([("user", "u"), ("group", "g")], RATE, "got 'group'"),
        ([("user", "u"), ("user", "v")], RATE, "an entity type is repeated"),
        ([("user", "")], RATE, "characters, got 0"),
        ([("user", "x" * 1000)], RATE, "characters, got 1000"),
        ([("user", "u")], [("nonsense", 1.0, False)], "got 'nonsense'"),
        ([("user", "u")], [("producer_byte_rate", -1.0, False)], "above 0, got -1.0"),
        ([("user", "u")], [("producer_byte_rate", 1.5, False)], "a whole number of bytes"),
        ([("user", "u")], [("request_percentage", float("nan"), False)], "got nan"),
        ([("user", "u")], RATE * 2, "a quota is repeated"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_and_its_neighbour_is_not(entity, changes, message):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            refused, good = await alter(node, (entity, changes), ([("user", "good")], RATE))
            assert refused[0] == ErrorCode.INVALID_REQUEST
            assert message in (refused[1] or "")
            assert good == (0, None)
            assert list(node.quotas.all()) == [ClientQuotaEntity("good", None)]

    run()


@in_loop
async def test_an_entity_that_is_there_twice_is_refused_both_times():
    async with open_handler_node() as node:
        first, second = [("user", "u"), ("client-id", "c")], [("client-id", "c"), ("user", "u")]
        results = await alter(node, (first, RATE), (second, RATE))
        assert [code for code, _ in results] == [ErrorCode.INVALID_REQUEST] * 2
        assert node.quotas.is_empty


# Finding.


def entity_of(parts: tuple[Part, ...]) -> ClientQuotaEntity:
    names = {kind: DEFAULT if name is None else name for kind, name in parts}
    return ClientQuotaEntity(names.get("user"), names.get("client-id"))


U, V, D = (
    ClientQuotaEntity("u", None),
    ClientQuotaEntity("v", None),
    ClientQuotaEntity(DEFAULT, None),
)
UC, UD, DC, C = (
    ClientQuotaEntity("u", "c"),
    ClientQuotaEntity("u", DEFAULT),
    ClientQuotaEntity(DEFAULT, "c"),
    ClientQuotaEntity(None, "c"),
)


@pytest.mark.parametrize(
    ("components", "is_strict", "wanted"),
    [
        ((), False, {U, V, D, UC, UD, DC, C}),
        ((), True, set()),
        ((("user", EXACT, "u"),), False, {U, UC, UD}),
        ((("user", EXACT, "u"),), True, {U}),
        ((("user", DEFAULT_ONLY, None),), False, {D, DC}),
        ((("user", ANY, None),), True, {U, V, D}),
        ((("client-id", ANY, None),), False, {UC, UD, DC, C}),
        ((("client-id", ANY, None),), True, {C}),
        ((("client-id", EXACT, "c"), ("user", ANY, None)), True, {UC, DC}),
        ((("user", EXACT, "u"), ("client-id", DEFAULT_ONLY, None)), False, {UD}),
        ((("user", EXACT, "nobody"),), False, set()),
        ((("ip", ANY, None),), False, set()),
    ],
)
def test_quotas_are_found_by_what_they_are_for(components, is_strict, wanted):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            for entity in (U, V, D, UC, UD, DC, C):
                await node.quotas.alter(entity, {"consumer_byte_rate": 1.0})
            found = shown(await describe(node, *components, is_strict=is_strict))
            assert {entity_of(parts) for parts in found} == wanted

    run()


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ((("group", ANY, None),), ErrorCode.UNSUPPORTED_VERSION, "got 'group'"),
        ((("user", 3, None),), ErrorCode.INVALID_REQUEST, "match type must be 0 exact"),
        ((("user", EXACT, None),), ErrorCode.INVALID_REQUEST, "a name must be given"),
        ((("user", ANY, "u"),), ErrorCode.INVALID_REQUEST, "a name must be given"),
        ((("user", DEFAULT_ONLY, "u"),), ErrorCode.INVALID_REQUEST, "a name must be given"),
        ((("user", ANY, None),) * 2, ErrorCode.INVALID_REQUEST, "'user' is repeated"),
        (
            (("user", ANY, None), ("ip", ANY, None)),
            ErrorCode.INVALID_REQUEST,
            "cannot be combined",
        ),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(components, code, message):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            response = await describe(node, *components)
            assert (response.error_code, response.entries) == (code, None)
            assert message in response.error_message

    run()
