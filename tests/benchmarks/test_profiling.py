"""Summary of sampled stacks."""

from __future__ import annotations

from measure.profiling import summary

STACKS = (
    "run (asyncio/runners.py:118);append (log.py:3);write (file.py:9) 6",
    "run (asyncio/runners.py:118);append (log.py:4) 2",
    "run (asyncio/runners.py:118) 2",
    "_bootstrap (threading.py:1);ThreadExecutor._serve (executor.py:5) 90",
)


def test_functions_come_by_the_share_of_samples_in_which_they_ran():
    lines = summary(STACKS).splitlines()
    assert lines[0].startswith("10 samples")
    assert lines[1].split() == ["60.0%", "60.0%", "write", "(file.py)"]


def test_a_function_has_the_samples_of_all_that_it_calls():
    assert "  20.0%   80.0%  append (log.py)\n" in summary(STACKS)


def test_a_thread_that_waits_for_work_does_not_count():
    assert "_serve" not in summary(STACKS)


def test_a_node_that_was_never_seen_busy_has_an_empty_profile():
    assert summary(STACKS[-1:]).startswith("0 samples")
