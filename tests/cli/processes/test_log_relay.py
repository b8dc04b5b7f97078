"""Lines of several processes on one standard error."""

from __future__ import annotations

import io
import json

from millstream.cli.processes.log_relay import LINE_BYTES_MAX, mark_line, relay_lines


def test_an_event_names_its_process_in_a_field():
    line = mark_line("node-2", '{"time":"now","event":"ready"}')
    assert json.loads(line) == {"process": "node-2", "time": "now", "event": "ready"}


def test_other_lines_begin_with_the_name_of_their_process():
    assert mark_line("node-1", "Thread 0x7f (most recent call first):") == (
        "node-1 | Thread 0x7f (most recent call first):"
    )
    assert mark_line("etcd", "") == "etcd | "
    assert mark_line("etcd", "{}") == "etcd | {}"


def test_all_lines_are_passed_on_also_an_unfinished_one():
    lines: list[str] = []
    relay_lines(io.BytesIO(b'{"a":1}\nb\n\xff'), "node-1", lines.append)
    assert lines == ['{"process":"node-1","a":1}', "node-1 | b", "node-1 | \\xff"]


def test_a_line_without_an_end_takes_a_bounded_amount_of_memory():
    lines: list[str] = []
    relay_lines(io.BytesIO(b"x" * (LINE_BYTES_MAX + 1)), "node-1", lines.append)
    assert [len(line) for line in lines] == [LINE_BYTES_MAX + 9, 1 + 9]
