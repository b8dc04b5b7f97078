"""The uncommitted bytes of all logs together are limited."""

from __future__ import annotations

from millstream.storage.append.byte_budget import ByteBudget


class Waiter:
    """Waits for `size` bytes, and again if there is still no capacity."""

    def __init__(self, budget: ByteBudget, size: int, received: list[Waiter]) -> None:
        self._budget = budget
        self._size = size
        self._told = received

    def admit_waiting(self) -> None:
        self._told.append(self)
        if self._budget.has_capacity(self._size):
            self._budget.acquire(self._size)
        else:
            self._budget.wait(self)


def test_what_fits_has_room_and_what_does_not_has_none():
    budget = ByteBudget(100)
    budget.acquire(60)
    assert budget.has_capacity(40)
    assert not budget.has_capacity(41)


def test_one_that_is_larger_than_all_passes_when_it_is_alone():
    budget = ByteBudget(100)
    assert budget.has_capacity(1_000)
    budget.acquire(1_000)
    assert not budget.has_capacity(1)
    budget.release(1_000)
    assert budget.has_capacity(1)


def test_a_budget_that_is_used_up_takes_nothing():
    budget = ByteBudget(100)
    budget.acquire(100)
    assert not budget.has_capacity(1)
    assert budget.has_capacity(0)


def test_giving_bytes_back_tells_each_waiter_once_and_in_order():
    budget, received = ByteBudget(100), []
    budget.acquire(100)
    waiters = [Waiter(budget, 10, received) for _ in range(3)]
    for waiter in (*waiters, waiters[0]):
        budget.wait(waiter)
    budget.release(100)
    assert received == waiters
    assert budget.used == 30


def test_a_waiter_that_finds_no_room_is_told_again_next_time():
    budget, received = ByteBudget(100), []
    budget.acquire(100)
    small, large = Waiter(budget, 30, received), Waiter(budget, 90, received)
    budget.wait(small)
    budget.wait(large)
    budget.release(50)
    assert received == [small, large]
    assert budget.used == 80
    received.clear()
    budget.release(80)
    assert received == [large]
    assert budget.used == 90


def test_who_was_told_and_does_not_wait_again_is_left_in_peace():
    budget, received = ByteBudget(100), []
    budget.acquire(100)
    budget.wait(Waiter(budget, 10, received))
    budget.release(50)
    received.clear()
    budget.release(50)
    assert received == []
