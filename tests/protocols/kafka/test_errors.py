"""Errors and codes: what a client is told, and what ours makes of it."""

from __future__ import annotations

import pytest

from millstream import errors
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import CODES, ERRORS, code_of, error_of


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)
def test_what_a_client_raises_has_the_code_that_it_was_told(code):
    error = error_of(code, "why")
    assert type(error) is ERRORS[code]
    assert str(error) == "why"
    assert code_of(error) is code


@pytest.mark.parametrize(
    "code", [code for code in ErrorCode if code not in ERRORS], ids=lambda code: code.name
)
def test_a_code_without_an_error_of_ours_is_told_by_its_name(code):
    error = error_of(code, "why")
    assert isinstance(error, errors.NodeRefused)
    assert (error.code, error.name, error.message) == (code, code.name, "why")


def test_a_code_from_the_future_is_told_by_its_number():
    assert str(error_of(999, "why")) == "UNKNOWN (999): why"


def test_codes_that_several_errors_have_are_told_as_one_of_them_or_not_at_all():
    several = {code for code in CODES.values() if list(CODES.values()).count(code) > 1}
    assert {code.name: ERRORS[code].__name__ for code in several & set(ERRORS)} == {
        "CORRUPT_MESSAGE": "InvalidBatch",
        "INVALID_REQUEST": "InvalidRequest",
        "UNKNOWN_TOPIC_OR_PARTITION": "UnknownTopic",
        "CONCURRENT_TRANSACTIONS": "ConcurrentTransaction",
        "NOT_COORDINATOR": "NotCoordinator",
        "CLUSTER_AUTHORIZATION_FAILED": "ClusterAccessDenied",
    }
