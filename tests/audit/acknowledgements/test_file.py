"""Acknowledgement files: entries are kept, and an incomplete end is distinguished from damage."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from millstream import AcknowledgementFile
from millstream.audit.acknowledgements.checksums import bytes_checksum, headers_checksum
from millstream.audit.acknowledgements.file import BUFFER_SIZE_MAX
from millstream.audit.acknowledgements.line import HEADER, LINE_SIZE_MAX, NO_OFFSET, Acknowledgement
from millstream.audit.acknowledgements.reader import AcknowledgementReader
from millstream.errors import (
    CorruptFile,
    InvalidConfig,
    LogClosed,
    MillstreamError,
    StorageFailed,
    StoreLocked,
    UnknownFormat,
)

DOCUMENTATION = Path(__file__).parents[3] / "docs/internals/acknowledgements.md"
ID = uuid.UUID("6b1f1d2e-8f5a-4f6e-9a7e-0d7d6a0c1b2a")


def read(path: Path) -> list[Acknowledgement]:
    return [one for _, one in AcknowledgementReader(str(path))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "acknowledged"


def test_what_is_noted_is_read_back(path: Path) -> None:
    with AcknowledgementFile(path, topic_ids={"orders": str(ID)}) as file:
        file.note("orders", 2, 17, value=b"v", key=b"k", headers=[("h", None)], timestamp_ms=-5)
        file.note("other", 0, 0, value=None)
    assert read(path) == [
        Acknowledgement(
            topic="orders",
            partition=2,
            offset=17,
            key=bytes_checksum(b"k"),
            value=bytes_checksum(b"v"),
            headers=headers_checksum([("h", None)]),
            timestamp_ms=-5,
            topic_id=ID,
        ),
        Acknowledgement(topic="other", partition=0, offset=0, key=None, value=None),
    ]


def test_the_sums_and_the_lines_are_those_of_the_documentation(path: Path) -> None:
    with AcknowledgementFile(path) as file:
        file.note("orders", 0, 1, value=b"hello", key=b"k1", headers=[("h", b"1"), ("n", None)])
        file.note("orders", 0, 2, value=None, headers=[])
    assert path.read_bytes() == (
        b'{"format":"millstream-acknowledgements","version":1}\n'
        b'{"topic":"orders","partition":0,"offset":1,"key":"81afbf86b72a36c5",'
        b'"value":"9555e8555c62dcfd","headers":"1349392c84196532"}\n'
        b'{"topic":"orders","partition":0,"offset":2,"key":null,"value":null,'
        b'"headers":"2d06800538d394c2"}\n'
    )
    for line in path.read_text().splitlines():
        assert line in DOCUMENTATION.read_text()


def test_headers_are_summed_in_their_order_and_with_their_lengths() -> None:
    laid_out = b"\0\0\0\1a\0\0\0\2bc\0\0\0\1a\xff\xff\xff\xff\0\0\0\1d\0\0\0\0"
    assert headers_checksum([("a", b"bc"), ("a", None), ("d", b"")]) == bytes_checksum(laid_out)
    assert headers_checksum([("a", b"1"), ("b", b"2")]) != headers_checksum(
        [("b", b"2"), ("a", b"1")]
    )
    assert headers_checksum([]) == bytes_checksum(b"")


def test_a_file_is_gone_on_with(path: Path) -> None:
    for offset in range(3):
        with AcknowledgementFile(path) as file:
            file.note("orders", 0, offset, value=b"v")
    assert [one.offset for one in read(path)] == [0, 1, 2]


@pytest.mark.parametrize("size", range(1, len(HEADER) + 100))
def test_a_file_that_is_cut_anywhere_is_torn_and_can_be_gone_on_with(path: Path, size: int) -> None:
    with AcknowledgementFile(path) as file:
        file.note("orders", 0, 0, value=b"v", key=b"k")
        file.note("orders", 0, 1, value=b"v", key=b"k")
    whole = path.read_bytes()
    cut = whole[:-size]
    path.write_bytes(cut)
    reader = AcknowledgementReader(str(path))
    left = [one.offset for _, one in reader]
    assert len(left) == max(0, cut.count(b"\n") - 1)
    assert reader.is_torn == (not cut.endswith(b"\n"))
    with AcknowledgementFile(path) as file:
        file.note("orders", 0, 9, value=b"v")
    reader = AcknowledgementReader(str(path))
    assert [one.offset for _, one in reader] == [*left, 9]
    assert not reader.is_torn


def test_an_empty_file_is_one_whose_client_was_killed_at_once(path: Path) -> None:
    path.touch()
    reader = AcknowledgementReader(str(path))
    assert list(reader) == []
    assert reader.is_torn


GOOD = b'{"topic":"t","partition":0,"offset":0,"key":null,"value":null}\n'


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (HEADER + GOOD + b"\0\0\0\n" + GOOD, CorruptFile, "line 3: not an acknowledgement"),
        (HEADER + b"\n", CorruptFile, "line 2"),
        (HEADER + GOOD.replace(b'"t"', b'""'), CorruptFile, "line 2"),
        (HEADER + GOOD.replace(b"0", b"-2", 1), CorruptFile, "line 2"),
        (HEADER + GOOD.replace(b'"offset":0', b'"offset":-2'), CorruptFile, "line 2"),
        (HEADER + GOOD.replace(b'"key":null,', b""), CorruptFile, "line 2"),
        (HEADER + GOOD.replace(b"null", b'"12"', 1), CorruptFile, "line 2"),
        (HEADER + b"\xff\n", CorruptFile, "line 2"),
        (HEADER + b"x" * LINE_SIZE_MAX + b"x\n", CorruptFile, f"longer than {LINE_SIZE_MAX} bytes"),
        (GOOD, CorruptFile, "line 1: not the first line"),
        (HEADER.replace(b"1", b"2"), UnknownFormat, "line 1: version must be 1, got 2"),
        (HEADER.replace(b"millstream", b"other"), UnknownFormat, "line 1: format must be"),
    ],
)
def test_damage_is_named_with_its_line(
    path: Path, content: bytes, error: type[MillstreamError], said: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(error, match=said):
        read(path)


def test_fields_of_a_later_version_are_passed_over(path: Path) -> None:
    path.write_bytes(HEADER + GOOD.replace(b"}", b',"more":[1]}'))
    assert [one.offset for one in read(path)] == [0]


@pytest.mark.parametrize("content", [b"precious", b"precious\n", GOOD, HEADER.replace(b"1", b"2")])
def test_a_file_of_something_else_is_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises((CorruptFile, UnknownFormat)):
        AcknowledgementFile(path)
    assert path.read_bytes() == content


def test_two_do_not_write_the_same_file(path: Path) -> None:
    with AcknowledgementFile(path), pytest.raises(StoreLocked, match="in use by another process"):
        AcknowledgementFile(path)
    AcknowledgementFile(path).close()


def test_many_threads_note_whole_lines(path: Path) -> None:
    with AcknowledgementFile(path, sync_every=500) as file:

        def note(partition: int) -> None:
            for offset in range(1000):
                file.note("orders", partition, offset, value=b"v")

        threads = [threading.Thread(target=note, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert file.count == 4000
    for partition in range(4):
        offsets = [one.offset for one in read(path) if one.partition == partition]
        assert offsets == list(range(1000))


def test_lines_are_gathered_until_there_are_enough_or_it_is_asked_for(path: Path) -> None:
    with AcknowledgementFile(path) as file:
        file.note("orders", 0, 0, value=b"v")
        assert read(path) == []
        file.flush()
        assert len(read(path)) == 1
        while path.stat().st_size < BUFFER_SIZE_MAX:
            file.note("orders", 0, file.count, value=b"v")
        assert len(read(path)) < file.count


def test_every_so_many_lines_they_are_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    with AcknowledgementFile(path, sync_every=3) as file:
        monkeypatch.setattr(os, "fsync", lambda _: synced.append(len(read(path))))
        for offset in range(7):
            file.note("orders", 0, offset, value=b"v")
        assert synced == [3, 6]
        file.sync()
        assert synced == [3, 6, 7]
    assert synced == [3, 6, 7, 7]


def test_after_a_failed_sync_nothing_is_taken_in(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    file = AcknowledgementFile(path)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageFailed, match="cannot be synced"):
        file.sync()
    monkeypatch.undo()
    with pytest.raises(StorageFailed, match="cannot be synced"):
        file.note("orders", 0, 0, value=b"v")
    file.close()
    with pytest.raises(LogClosed):
        file.note("orders", 0, 0, value=b"v")


def test_a_line_that_a_full_disk_cut_is_finished_when_there_is_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 100
    write = os.write

    def write_some(file: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        size = write(file, data[:room])
        room -= size
        return size

    with AcknowledgementFile(path) as file:
        monkeypatch.setattr(os, "write", write_some)
        for offset in range(3):
            file.note("orders", 0, offset, value=b"v")
        with pytest.raises(StorageFailed, match="No space left"):
            file.flush()
        assert AcknowledgementReader(str(path)).path
        room = 10_000
    assert [one.offset for one in read(path)] == [0, 1, 2]


def test_bad_settings_are_refused(path: Path) -> None:
    with pytest.raises(InvalidConfig, match="sync_every must be at least 0, got -1"):
        AcknowledgementFile(path, sync_every=-1)
    with pytest.raises(InvalidConfig, match="topic id must be a UUID, got 'x'"):
        AcknowledgementFile(path, topic_ids={"orders": "x"})
    with pytest.raises(StorageFailed, match="cannot be opened"):
        AcknowledgementFile(path / "not" / "there")


class Sent:
    """Record metadata as returned by kafka-python and aiokafka."""

    topic, partition, offset, timestamp = "orders", 1, 7, 1234


def test_what_kafka_python_sent_is_noted_with_where_it_went(path: Path) -> None:
    with AcknowledgementFile(path) as file:
        file.on_send(b"v", key=b"k", headers=[("h", b"1")])(Sent())
    (one,) = read(path)
    assert (one.topic, one.partition, one.offset, one.timestamp_ms) == ("orders", 1, 7, 1234)
    assert (one.key, one.value) == (bytes_checksum(b"k"), bytes_checksum(b"v"))
    assert one.headers == headers_checksum([("h", b"1")])


class Message:
    """A confluent-kafka message as passed to a delivery report."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    topic = staticmethod(lambda: "orders")
    partition = staticmethod(lambda: 0)
    key = staticmethod(lambda: None)
    value = staticmethod(lambda: b"v")
    timestamp = staticmethod(lambda: (0, 0))

    def offset(self) -> int:
        return self._offset


def test_what_came_without_an_offset_is_counted_apart(path: Path) -> None:
    with AcknowledgementFile(path) as file:
        file.on_delivery(None, Message(-1001))
        file.on_delivery("refused", Message(5))
        file.on_delivery_of({"h": "x"})(None, Message(6))
        file.on_delivery_of({"h": "x"})("refused", Message(7))
        assert (file.count, file.unplaced) == (2, 1)
    unplaced, placed = read(path)
    assert unplaced.offset == NO_OFFSET
    assert unplaced.timestamp_ms is None
    assert (placed.offset, placed.headers) == (6, headers_checksum([("h", b"x")]))


def test_a_transaction_is_noted_when_it_is_committed_and_never_else(path: Path) -> None:
    with AcknowledgementFile(path) as file:
        given_up, done = file.transaction(), file.transaction()
        given_up.on_delivery(None, Message(1))
        done.on_delivery(None, Message(2))
        done.on_delivery("refused", Message(3))
        assert file.count == 0
        done.committed()
        done.committed()
    (one,) = read(path)
    assert (one.offset, one.is_committed) == (2, True)


def test_what_was_flushed_outlives_the_process(path: Path) -> None:
    code = (
        "import os, sys; from millstream import AcknowledgementFile\n"
        "file = AcknowledgementFile(sys.argv[1]); file.note('t', 0, 0, value=b'v'); file.flush()\n"
        "file.note('t', 0, 1, value=b'v'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert [one.offset for one in read(path)] == [0]
