"""FindCoordinator, as clients see it."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.coordinator import FindCoordinatorRequest

GROUP, TRANSACTION, SHARE = 0, 1, 2


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("key_type", [GROUP, TRANSACTION])
@pytest.mark.parametrize("key", ["a key", ""])
def test_one_key_is_looked_after_by_this_node(client, broker, version, key_type, key):
    request = FindCoordinatorRequest(key=key, key_type=key_type if version else GROUP)
    answer = client.call(request, version)
    assert (answer.error_code, answer.error_message, answer.node_id) == (0, None, 1)
    assert f"{answer.host}:{answer.port}" == broker.bootstrap


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("key_type", [GROUP, TRANSACTION])
def test_many_keys_are_looked_after_by_this_node(client, broker, version, key_type):
    request = FindCoordinatorRequest(coordinator_keys=("a", "", "b"), key_type=key_type)
    answer = client.call(request, version)
    assert [found.key for found in answer.coordinators] == ["a", "", "b"]
    for found in answer.coordinators:
        assert (found.error_code, found.error_message, found.node_id) == (0, None, 1)
        assert f"{found.host}:{found.port}" == broker.bootstrap


def test_no_keys_have_no_coordinators(client):
    assert client.call(FindCoordinatorRequest(coordinator_keys=()), 4).coordinators == ()


@pytest.mark.parametrize("key_type", [SHARE, 3, -1])
def test_a_kind_of_key_that_is_not_served_is_refused(client, key_type):
    one = client.call(FindCoordinatorRequest(key="a", key_type=key_type), 3)
    assert one.error_code == ErrorCode.INVALID_REQUEST
    assert (one.node_id, one.host, one.port) == (-1, "", -1)
    assert one.error_message == f"key type must be 0 or 1, got {key_type}"
    many = client.call(FindCoordinatorRequest(coordinator_keys=("a",), key_type=key_type), 6)
    assert many.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
    assert many.coordinators[0].node_id == -1
