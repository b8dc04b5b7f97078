"""Settings and hooks that apply to every test."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
SLOW = (
    "audit",
    "benchmarks",
    "browser",
    "cli",
    "clients",
    "compat",
    "cluster/administration",
    "cluster/forwarding",
    "cluster/processes",
    "cluster/replication",
    "crash",
    "deploy",
    "metadata/etcd",
    "observe/otel",
    "planted",
    "servers/http/routing/test_openapi.py",
    "servers/http/streams/test_conformance.py",
    "servers/http/test_names.py",
    "servers/kafka/abuse",
    "spark",
    "storage/compaction/test_segment_swap.py",
    "test_demo.py",
    "test_docs.py",
    "testing/cluster/test_running.py",
    "testing/test_etcd.py",
)
"""Tests that start nodes, processes, a JVM or a browser, enumerate crash states, or abuse a node.

`make test-fast` leaves them out, and whatever else is marked `slow`.
"""

# How long an example takes says something about the machine and nothing about the code.
settings.register_profile("millstream", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("millstream")


def pytest_configure() -> None:
    """Start child processes with default handling of SIGINT and SIGHUP.

    Under `nohup`, or in the background of a script, these signals are ignored, and a child process
    inherits that; then tests that stop a child with Ctrl-C or a hangup wait forever. A signal that
    has a handler is reset to its default in the child, so the tests get a handler that does
    nothing: pytest itself still ignores the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Reject parameters that come from a set.

    Its order differs between processes, and xdist runs nothing when its workers collect tests in
    different orders.
    """
    for marker in metafunc.definition.iter_markers("parametrize"):
        if len(marker.args) > 1 and isinstance(marker.args[1], set | frozenset):
            found = metafunc.definition.nodeid
            raise pytest.UsageError(f"{found} takes its parameters from a set; they need an order")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests by their paths."""
    for item in items:
        path = item.path.relative_to(TESTS)
        is_campaign = path.stem.endswith(("_crash", "_model"))
        if is_campaign or any(path.is_relative_to(slow) for slow in SLOW):
            item.add_marker("slow")
