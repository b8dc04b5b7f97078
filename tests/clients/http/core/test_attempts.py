"""Retries: the number of attempts and the pauses between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.clients.http.core.attempts import Attempts
from millstream.clients.http.core.config import ClientConfig
from millstream.errors import InvalidConfig

jitters = st.floats(0, 1, exclude_max=True)
seconds = st.floats(0, 100)


@given(
    timeout_s=st.floats(0.001, 100),
    pauses=st.tuples(st.floats(0.001, 5), st.floats(1, 20)),
    steps=st.lists(st.tuples(seconds, jitters, st.just(0.0) | seconds), max_size=30),
)
def test_no_attempt_begins_behind_the_deadline_and_no_pause_is_out_of_bounds(
    timeout_s, pauses, steps
):
    low, high = min(pauses), max(pauses)
    config = ClientConfig(timeout_s=timeout_s, pause_s_min=low, pause_s_max=high)
    now, jitter = 0.0, 0.0
    attempts = Attempts(config, now=now, jitter=lambda: jitter)
    full = low
    for number, (took_s, drawn, retry_after_s) in enumerate(steps, start=1):
        assert attempts.count == number
        now += took_s
        jitter = drawn
        pause_s = attempts.pause_s(now, retry_after_s=retry_after_s)
        if pause_s is None:
            assert now + max(full, retry_after_s) >= timeout_s
            return
        assert pause_s >= retry_after_s
        assert full / 2 <= pause_s <= max(full, retry_after_s)
        now += pause_s
        assert now < timeout_s
        assert attempts.left_s(now) > 0
        full = min(full * 2, high)


def test_clients_that_were_refused_together_do_not_come_back_together():
    drawn = iter([0.0, 0.5, 0.999])
    found = [
        Attempts(ClientConfig(pause_s_min=1.0), now=0.0, jitter=lambda: next(drawn)).pause_s(0.0)
        for _ in range(3)
    ]
    assert found == [0.5, 0.75, 0.9995]


@pytest.mark.parametrize(
    "wrong",
    [{"timeout_s": 0}, {"answer_size_max": -1}, {"pause_s_min": 3.0}, {"timeout_s": float("nan")}],
)
def test_a_config_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidConfig):
        ClientConfig(**wrong)
