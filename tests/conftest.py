"""What holds for all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine and nothing about the code.
settings.register_profile("millstream", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("millstream")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuse parameters out of a set: workers that collect them in two orders run nothing."""
    for marker in metafunc.definition.iter_markers("parametrize"):
        if len(marker.args) > 1 and isinstance(marker.args[1], set | frozenset):
            found = metafunc.definition.nodeid
            raise pytest.UsageError(f"{found} takes its parameters from a set; they need an order")
