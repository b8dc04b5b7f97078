"""Slots: who has how many, and who is woken when one is free."""

from __future__ import annotations

import pytest

from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.access.user_slots import NO_USER_CAPS, UserCaps, UserSlots, slot_holder
from millstream.config.schema import BrokerConfig
from millstream.errors import CapExceeded

ALICE, BOB = (Caller(user(name), "10.0.0.1") for name in ("alice", "bob"))


def slots(limit: int) -> UserSlots:
    return UserSlots("requests in flight", "limits.requests_per_user", limit)


class Waiter:
    """Takes a slot when it is woken, if it still wants one."""

    def __init__(self, slots: UserSlots, *, wants: bool = True) -> None:
        self._slots = slots
        self._wants = wants
        self.is_woken = False

    def wake(self) -> None:
        self.is_woken = True
        if self._wants:
            self._slots.take("alice")
        self._slots.wake_next("alice")


def test_a_user_has_as_many_as_the_limit_says_and_others_have_theirs() -> None:
    requests = slots(2)
    words = r"^User:alice has 2 requests in flight, limits\.requests_per_user is 2$"
    with requests.taken(ALICE), requests.taken(ALICE):
        with pytest.raises(CapExceeded, match=words), requests.taken(ALICE):
            pass
        with requests.taken(BOB):
            pass
    with requests.taken(ALICE):
        pass
    assert requests.is_unused


def test_a_slot_is_given_back_when_the_work_fails() -> None:
    requests = slots(1)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), requests.taken(ALICE):
            raise error
    assert requests.is_unused


def test_those_without_a_login_are_counted_by_address() -> None:
    assert slot_holder(Caller(host="10.0.0.1")) != slot_holder(Caller(host="10.0.0.2"))
    tricky = Caller(user(slot_holder(Caller(host="10.0.0.1"))), "10.0.0.1")
    assert slot_holder(tricky) != slot_holder(Caller(host="10.0.0.1"))
    assert slot_holder(ALICE) == slot_holder(Caller(user("alice"), "10.0.0.9"))


def test_waiters_are_woken_in_turn_as_far_as_there_is_room() -> None:
    requests = slots(2)
    requests.take("alice", 2)
    waiters = [Waiter(requests) for _ in range(4)]
    for waiter in (*waiters, waiters[0]):
        requests.wait("alice", waiter)
    requests.give_back("alice")
    assert [waiter.is_woken for waiter in waiters] == [True, False, False, False]
    requests.give_back("alice", 2)
    assert [waiter.is_woken for waiter in waiters] == [True, True, True, False]
    requests.forget("alice", waiters[3])
    requests.give_back("alice", 2)
    assert not waiters[3].is_woken
    assert requests.is_unused


def test_one_that_is_woken_and_does_not_want_it_leaves_it_to_the_next() -> None:
    requests = slots(1)
    requests.take("alice")
    waiters = [Waiter(requests, wants=wants) for wants in (False, False, True)]
    for waiter in waiters:
        requests.wait("alice", waiter)
    requests.give_back("alice")
    assert [waiter.is_woken for waiter in waiters] == [True, True, True]


def test_nothing_is_counted_without_a_limit() -> None:
    for caps in (NO_USER_CAPS, UserCaps(BrokerConfig())):
        assert (caps.connections, caps.live, caps.requests) == (None, None, None)
