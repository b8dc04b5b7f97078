"""`millstream topic append`: accepted input, target partitions, and errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cli.support import record_input as appending
from millstream.testing.broker import RunningBroker
from tests.cli.commands import lines_of, on_a_terminal, run, started, told
from tests.cli.nodes import PATIENCE, wait_until

AT = 1_763_240_000_000


@pytest.fixture(autouse=True)
def topic(node: RunningBroker) -> None:
    run("topic", "create", "orders", server=node.url)


def append(node: RunningBroker, *options: object, **settings: Any) -> Any:
    return told("topic", "append", "orders", *options, server=node.url, **settings)


def records(node: RunningBroker, topic: str = "orders") -> list[millstream.TopicRecord]:
    with millstream.Client(node.url) as client:
        found = list(client.read(topic))
    assert all(isinstance(one, millstream.TopicRecord) for one in found)
    return found  # type: ignore[return-value]


def values(node: RunningBroker) -> list[bytes | None]:
    return [one.raw for one in records(node)]


def test_one_record_is_appended_from_options(node: RunningBroker) -> None:
    options = ("--key", "k1", "--value", '{"n": 1}', "--header", "a=b", "--header", "c=d=e")
    result = run("topic", "append", "orders", *options, server=node.url)
    assert (result.exit_code, result.stdout) == (0, "partition 0 offset 0\n")
    (found,) = records(node)
    assert (found.key, found.value, found.headers) == ("k1", {"n": 1}, {"a": "b", "c": "d=e"})


def test_each_line_of_input_is_a_record_to_the_byte(node: RunningBroker) -> None:
    lines = [b"a", b"", b"\xff\x00", '{"n": "ü"}'.encode(), b" last\r"]
    answer = append(node, input=b"\n".join(lines))
    assert answer == {
        "records": 5,
        "partitions": [{"partition": 0, "first_offset": 0, "last_offset": 4, "records": 5}],
    }
    assert values(node) == lines


def test_input_of_nothing_appends_nothing(node: RunningBroker) -> None:
    assert append(node, input=b"") == {"records": 0, "partitions": []}


def test_input_of_nothing_is_told(node: RunningBroker) -> None:
    result = run("topic", "append", "orders", server=node.url, input=b"")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "the input has no records, nothing was appended\n"


def test_raw_input_is_one_value(node: RunningBroker) -> None:
    append(node, "--format", "raw", "--key", "k", input=b"a\nb\n")
    assert [(one.key, one.raw) for one in records(node)] == [("k", b"a\nb\n")]


def test_a_key_is_parted_from_its_value(node: RunningBroker) -> None:
    append(node, "--key-separator", ":", input=b"k1:a:b\nk2:\n")
    assert [(one.key, one.raw) for one in records(node)] == [("k1", b"a:b"), ("k2", b"")]


def test_records_as_json_bring_keys_headers_and_times(node: RunningBroker) -> None:
    lines = [
        {"value": {"n": 1}, "key": "k", "headers": {"a": ["1", None]}, "timestamp": AT},
        {"value": {"base64": "/w=="}, "key": {"base64": "/w=="}},
        {"text": "no JSON", "offset": 7, "topic": "other", "partition": 9},
        {"value": None, "key": "k"},
    ]  # fmt: skip
    append(node, "--format", "json", input="\n\n".join(map(json.dumps, lines)))
    first, *rest = records(node)
    assert (first.key, first.value, first.headers) == ("k", {"n": 1}, {"a": ["1", None]})
    assert first.timestamp_ms == AT
    assert [(one.key, one.raw) for one in rest] == [
        (b"\xff", b"\xff"), (None, b"no JSON"), ("k", None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "it ends too early"),
        ("[]", "it must be an object, got a list of 0"),
        ("{}", "neither `value` nor `text`"),
        ('{"value": 1, "text": "a"}', "only one is allowed"),
        ('{"valeu": 1}', "unknown field 'valeu'"),
        ('{"value": 1, "key": 7}', "key must be"),
        ('{"value": 1, "key": {"base64": "*"}}', "base64"),
        ('{"value": {"base64": "*"}}', "base64"),
        ('{"value": 1, "headers": {"a": 7}}', "headers.a must be"),
    ],
)
def test_a_line_that_is_no_record_is_named_and_what_stands_before_it_is_appended(
    node: RunningBroker, line: str, words: str
) -> None:
    lines = ['{"value": 1}', "", '{"value": 2}', line, '{"value": 3}']
    result = run(
        "topic", "append", "orders", "--format", "json", "--json",
        server=node.url, input="\n".join(lines),
    )  # fmt: skip
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: line 4: ")
    assert words in result.stderr
    assert result.stderr.endswith("; 2 records acknowledged, continue with line 4\n")
    assert json.loads(result.stdout)["records"] == 2
    assert values(node) == [b"1", b"2"]


def test_what_is_acknowledged_is_told_when_the_node_refuses_the_rest(
    node: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("topic", "set", "orders", "max.message.bytes=1000", server=node.url)
    monkeypatch.setattr(appending, "RECORDS_MAX", 2)
    lines = b"\n".join([b"a", b"b", b"c", b"x" * 2_000, b"d"])
    result = run("topic", "append", "orders", server=node.url, input=lines)
    assert result.exit_code == 1
    assert "2 records acknowledged, continue with line 3" in result.stderr
    assert result.stdout.split()[-4:] == ["0", "0", "1", "2"]
    assert values(node)[:2] == [b"a", b"b"]


@pytest.mark.parametrize(
    "options",
    [
        ("--value", "a", "--key-separator", ":"),
        ("--format", "json", "--key", "k"),
        ("--format", "json", "--header", "a=b"),
        ("--format", "raw", "--key-separator", ":"),
        ("--key", "k", "--key-separator", ":"),
        ("--key-separator", ""),
        ("--header", "a"),
        ("--file", "/nowhere"),
    ],
    ids=str,
)
def test_options_that_exclude_each_other_are_wrong_usage(
    node: RunningBroker, options: tuple[str, ...]
) -> None:
    result = run("topic", "append", "orders", *options, server=node.url, input="a:b")
    assert result.exit_code == 2
    assert values(node) == []


def test_a_partition_is_written_to(node: RunningBroker) -> None:
    run("topic", "set", "orders", "partitions=3", server=node.url)
    assert append(node, "--partition", 2, input=b"a\nb")["partitions"][0]["partition"] == 2
    result = run("topic", "append", "orders", "--partition", 7, "--value", "a", server=node.url)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


def test_lines_are_appended_as_they_come(node: RunningBroker) -> None:
    """The command does not wait for the end of the input or for a full batch."""
    words = ("topic", "append", "orders", "--server", node.url)
    with started(*words, stdin=subprocess.PIPE) as process:
        for number, line in enumerate([b"first\n", b"second\nthird\n"], start=1):
            process.stdin.write(line)
            process.stdin.flush()
            wait_until(lambda count=number: len(values(node)) == 2 * count - 1)
        process.stdin.close()
        process.stdin = None
        assert process.wait(PATIENCE) == 0
    assert values(node) == [b"first", b"second", b"third"]


def test_ctrl_c_ends_it_with_what_was_acknowledged(node: RunningBroker) -> None:
    words = ("topic", "append", "orders", "--server", node.url, "--json")
    with started(*words, stdin=subprocess.PIPE) as process:
        process.stdin.write(b"first\n")
        process.stdin.flush()
        wait_until(lambda: values(node) == [b"first"])
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert json.loads(said)["records"] == 1
    assert errors == b"ended by Ctrl-C; 1 record acknowledged, continue with line 2\n"


def test_a_file_is_appended_whole_with_a_bar_on_a_terminal(
    node: RunningBroker, tmp_path: Path
) -> None:
    lines = [b"%d" % number * 100 for number in range(5_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines) + b"\n")
    status, shown = on_a_terminal(
        "topic", "append", "orders", "--file", tmp_path / "lines", "--server", node.url
    )
    assert status == 0
    assert "append" in shown  # The progress bar.
    assert shown.splitlines()[-1].split() == ["0", "0", "4999", "5000"]
    assert values(node) == lines


def test_what_tail_prints_is_what_append_takes(node: RunningBroker) -> None:
    """The copy is exact to the byte, for all values, keys and headers."""
    raws = [
        b'{"n": 1.00, "big": 123456789012345678901234567890, "a": "\xc3\xbc"}', b"null",
        b'{"base64": "AA=="}', b"plain", b"\xff", b"", b'"text"', b'{"text": 1}', b"[1,\t2]", None,
    ]  # fmt: skip
    with millstream.Client(node.url) as client:
        client.create_topic("copy")
        for number, raw in enumerate(raws):
            key = [None, "k", b"\xff"][number % 3]
            client.append("orders", raw, key=key, headers={"h": ["1", None, b"\xff"]})
    said = run("topic", "tail", "orders", "--from", "earliest", "--no-follow", "--json",
               server=node.url).stdout  # fmt: skip
    assert len(lines_of(said)) == len(raws)
    result = run("topic", "append", "copy", "--format", "json", server=node.url, input=said)
    assert result.exit_code == 0, result.output
    copies = records(node, "copy")
    assert [(one.key, one.headers, one.timestamp_ms) for one in copies] == [
        (one.key, one.headers, one.timestamp_ms) for one in records(node)
    ]
    # The server returns a space for a tab between JSON tokens.
    assert [one.raw for one in copies] == [raw and raw.replace(b"\t", b" ") for raw in raws]


def test_json_on_a_line_has_nothing_that_a_terminal_would_obey(node: RunningBroker) -> None:
    raw = '{"a": "\x9b2J", "\u202e": "\x7f", "b": "ü"}'
    with millstream.Client(node.url) as client:
        client.append("orders", raw.encode(), key="\x1b[2J", headers={"\x9b": "\x1b"})
    said = run("topic", "tail", "orders", "--from", "earliest", "--no-follow", "--json",
               server=node.url).stdout  # fmt: skip
    assert said.removesuffix("\n").isprintable()
    (found,) = lines_of(said)
    assert found["value"] == json.loads(raw)
    assert (found["key"], found["headers"]) == ("\x1b[2J", {"\x9b": "\x1b"})


def test_a_topic_that_is_not_there_is_made_where_the_node_makes_them(node: RunningBroker) -> None:
    result = run("topic", "append", "new", "--value", "a", server=node.url)
    assert (result.exit_code, result.stdout) == (0, "partition 0 offset 0\n")


def test_output_that_nobody_reads_ends_it_quietly(node: RunningBroker) -> None:
    read, write = os.pipe()
    os.close(read)
    words = ("topic", "append", "orders", "--value", "a", "--server", node.url)
    with started(*words, stdout=write) as process:
        os.close(write)
        errors = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, errors) == (1, b"")
