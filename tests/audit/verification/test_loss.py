"""Loss and changes in a node's files are detected, in the files and in the node's responses."""

from __future__ import annotations

from array import array

import pytest

from millstream.records.batch import HEADER_SIZE, decode_header, seal
from millstream.records.filter.batch_filter import remove_offsets

from .nodes import TOPIC, Stage

COUNT = 300


@pytest.fixture
def filled(stage: Stage) -> Stage:
    with stage.node() as broker:
        stage.create(broker)
        stage.fill(broker, COUNT)
    return stage


def both(stage: Stage, *options: str):
    """Verify the directory, then a node started on it."""
    yield stage.verify(None, *options)
    with stage.node() as broker:
        yield stage.verify(broker, *options)


def test_a_sound_directory_and_its_node_are_sound(filled: Stage) -> None:
    assert len(filled.logs()) > 2
    for found in both(filled):
        assert found.exit_code == 0
        assert found.outcomes == {"found": COUNT}
        assert found.damage == []


def test_a_directory_can_be_verified_beside_its_node(filled: Stage) -> None:
    with filled.node() as broker:
        filled.fill(broker, 50)
        found = filled.verify(None)
    assert (found.exit_code, found.outcomes) == (0, {"found": COUNT + 50})


def flipped(batch: bytes) -> bytes:
    """Return the batch with a changed value and a valid checksum."""
    body = bytearray(batch[HEADER_SIZE:])
    body[body.index(b"number") + 1] ^= 1
    return seal(decode_header(batch), bytes(body))


def test_a_changed_value_is_found_though_its_sum_is_right(filled: Stage) -> None:
    last = filled.logs()[-1]
    offset = int(last.stem) + 1
    filled.replace(last, flipped, of=offset)
    filled.unattest(last)
    for found in both(filled):
        assert found.exit_code == 1
        assert found.outcomes == {"found": COUNT - 1, "different": 1}
        (miss,) = found.report["misses"]
        assert (miss["topic"], miss["partition"], miss["offset"]) == (TOPIC, 0, offset)
        assert miss["line"] == offset + 2
        assert miss["why"] == "the record at its offset has another value"


def test_a_removed_record_is_found_though_its_batch_is_sound(filled: Stage) -> None:
    last = filled.logs()[-1]
    offset = int(last.stem) + 1
    filled.replace(last, lambda batch: remove_offsets(batch, array("q", [offset])), of=offset)
    filled.unattest(last)
    for found in both(filled):
        assert found.exit_code == 1
        assert found.outcomes == {"found": COUNT - 1, "lost": 1}
        assert found.report["misses"][0]["offset"] == offset


def test_an_end_that_is_cut_off_is_missed_though_nothing_attests_it(filled: Stage) -> None:
    last = filled.logs()[-1]
    whole = last.read_bytes()
    size = decode_header(whole).size
    last.write_bytes(whole[:size])
    filled.unattest(last)
    left = int(last.stem) + 1
    for found in both(filled):
        assert found.exit_code == 1
        assert found.damage == [], "only who was told of these records can miss them"
        assert found.outcomes == {"found": left, "lost": COUNT - left}
        assert found.report["misses"][0]["why"] == f"the partition ends at offset {left}"


def test_a_torn_off_end_that_was_synced_is_damage_too(filled: Stage) -> None:
    last = filled.logs()[-1]
    last.write_bytes(last.read_bytes()[:-1])
    found = filled.verify(None)
    assert found.exit_code == 1
    assert found.damage
    assert found.outcomes == {"found": COUNT - 1, "lost": 1}


def test_a_segment_that_is_gone_is_missed_record_by_record(filled: Stage) -> None:
    gone, after = filled.logs()[1:3]
    missing = int(after.stem) - int(gone.stem)
    for suffix in ("log", "index", "seal"):
        gone.with_suffix(f".{suffix}").unlink(missing_ok=True)
    for found in both(filled):
        assert found.exit_code == 1
        assert found.damage
        assert found.outcomes == {"found": COUNT - missing, "lost": missing}


def test_behind_a_damaged_batch_all_is_looked_for(filled: Stage) -> None:
    log = filled.logs()[1]
    offset = int(log.stem) + 3

    def damaged(batch: bytes) -> bytes:
        return batch[:-1] + bytes([batch[-1] ^ 1])

    filled.replace(log, damaged, of=offset)
    for found in both(filled):
        assert found.exit_code == 1
        assert found.damage
        assert found.outcomes == {"found": COUNT - 1, "lost": 1}
        assert found.report["misses"][0]["offset"] == offset


@pytest.mark.parametrize("suffix", ["index", "seal"])
def test_a_damaged_index_is_found_though_no_record_is_lost(filled: Stage, suffix: str) -> None:
    path = filled.logs(suffix)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = filled.verify(None)
    assert found.exit_code == 1
    assert found.outcomes == {"found": COUNT}
    assert any(str(path) in line for line in found.damage)


def test_a_topic_that_vanished_is_lost_unless_someone_says_that_it_was_deleted(
    filled: Stage,
) -> None:
    with filled.node() as broker:
        broker.run(broker.server.broker.topics.delete(TOPIC))
        assert filled.verify(broker).outcomes == {"lost": COUNT}
        assert filled.verify(broker, "--deleted", TOPIC).outcomes == {"deleted": COUNT}
    found = filled.verify(None)
    assert found.outcomes == {"lost": COUNT}
    assert found.report["misses"][0]["why"] == f"topic '{TOPIC}' does not exist"
    assert filled.verify(None, "--deleted", TOPIC).outcomes == {"deleted": COUNT}


def test_the_files_of_a_topic_that_vanished_are_lost(filled: Stage) -> None:
    for path in (filled.data / "topics" / TOPIC / "0").iterdir():
        path.unlink()
    for found in both(filled):
        assert found.exit_code == 1
        assert found.outcomes == {"lost": COUNT}
