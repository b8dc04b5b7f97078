"""Errors are few, documented, and grouped by who has to act."""

from __future__ import annotations

import inspect
import pickle

import pytest

from millstream import errors
from millstream.errors import (
    BACKPRESSURE_KINDS,
    AccessDenied,
    CorruptData,
    DeadlineExceeded,
    DiskFull,
    InvalidReplication,
    LogFull,
    MillstreamError,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    QuotaExceeded,
    RequestError,
    Unavailable,
    WouldBlock,
)

BRANCHES = (
    RequestError,
    Unavailable,
    CorruptData,
    OutcomeUnknown,
    NotLeader,
    InvalidReplication,
    AccessDenied,
)
ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", ALL)
def test_an_error_derives_from_one_branch_or_from_the_root(kind):
    if kind is MillstreamError:
        assert kind.__bases__ == (Exception,)
    else:
        assert kind.__bases__ in [(MillstreamError,), *((branch,) for branch in BRANCHES)]


@pytest.mark.parametrize("kind", ALL)
def test_an_error_says_what_it_means(kind):
    own = kind.__dict__.get("__doc__")
    assert own, "a docstring of its own, not that of its parent"
    assert own[0].isupper()
    assert own.rstrip().endswith(".")


@pytest.mark.parametrize("kind", ALL)
def test_an_error_is_no_error_of_python_itself(kind):
    """Otherwise code that catches `OSError` or `ValueError` would hide it."""
    python = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    assert python == [Exception, BaseException, object]


def test_there_are_few_errors():
    assert len(ALL) <= 114, "one for each thing that a client has to do differently, no more"


def test_an_offset_out_of_range_carries_all_three_numbers():
    error = OffsetOutOfRange(7, start=10, end=20)
    assert (error.offset, error.start, error.end) == (7, 10, 20)
    assert str(error) == "offset must be between 10 and 20, got 7"


def test_an_append_that_would_block_carries_its_reason():
    error = WouldBlock("the disk is slow")
    assert error.reason == "the disk is slow"
    assert str(error) == "append would block: the disk is slow"


def test_kinds_of_backpressure_are_told_apart_by_one_word():
    assert WouldBlock("slow", "store").kind == "store"
    assert DeadlineExceeded("late", "sealing").kind == "sealing"
    kinds = (LogFull.kind, DiskFull.kind, QuotaExceeded.kind)
    assert kinds == ("limit", "full", "quota")
    assert {"log", "store", "sealing", *kinds} == set(BACKPRESSURE_KINDS)


@pytest.mark.parametrize("kind", [WouldBlock, DeadlineExceeded])
def test_who_was_not_admitted_may_try_again(kind):
    assert issubclass(kind, Unavailable)
    assert not issubclass(kind, RequestError)


@pytest.mark.parametrize(
    "error",
    [
        OffsetOutOfRange(7, start=10, end=20),
        WouldBlock("slow", "log"),
        DeadlineExceeded("late", "log"),
        RequestError("wrong"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_from_one_process_to_another(error):
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
