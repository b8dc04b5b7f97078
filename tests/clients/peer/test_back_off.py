"""Time between attempts to connect."""

from __future__ import annotations

import pytest

from millstream.clients.peer.back_off import back_off_seconds


@pytest.mark.parametrize(
    ("failures", "chance", "seconds"),
    [
        (0, 1.0, 0.0),
        (1, 1.0, 0.05),
        (2, 1.0, 0.1),
        (3, 1.0, 0.2),
        (3, 0.0, 0.1),
        (3, 0.5, 0.15),
        (6, 1.0, 1.6),
        (7, 1.0, 2.0),
        (10_000, 1.0, 2.0),
    ],
)
def test_it_doubles_up_to_a_limit_with_jitter(failures, chance, seconds):
    found = back_off_seconds(failures, seconds_min=0.05, seconds_max=2.0, chance=chance)
    assert found == pytest.approx(seconds)
