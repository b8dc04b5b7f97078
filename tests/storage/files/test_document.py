"""A small file is read completely or refused, and replaced completely or not at all."""

from __future__ import annotations

import json

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptFile, UnknownFormat
from millstream.storage.files.document import (
    DOCUMENT_SIZE_MAX,
    decode_document,
    encode_document,
    read_document,
    write_document,
)
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem, sweep
from millstream.testing.disk.crash_states import crash_states

KIND = "millstream-test"
OLD = {"name": "old", "numbers": [1, 2, 3]}
NEW = {"name": "new", "numbers": list(range(100))}

GOLDEN = (
    b'{"content":{"a":[1,null],"b":"\\u00e9"},"crc32c":"c86801f9",'
    b'"format":"millstream-test","version":1}\n'
)


def decode(data: bytes) -> dict[str, object]:
    return decode_document(data, KIND, 1)


def write(filesystem: SimulatedFilesystem | FaultyFilesystem, content: dict[str, object]) -> None:
    write_document(filesystem, "/d", "doc.json", content, kind=KIND, version=1)


def read(filesystem: SimulatedFilesystem) -> dict[str, object]:
    return read_document(filesystem, "/d/doc.json", KIND, 1)


def disk_with(content: bytes) -> SimulatedFilesystem:
    return SimulatedFilesystem({"/d": None, "/d/doc.json": content})


def sealed_anew(text: str) -> bytes:
    """A document with content `text` and a correct checksum."""
    document = json.loads(text)
    body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    document["crc32c"] = f"{crc32c(body):08x}"
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


# The bytes.


def test_a_document_lies_as_it_is_described():
    assert encode_document(KIND, 1, {"b": "é", "a": [1, None]}) == GOLDEN
    assert decode(GOLDEN) == {"a": [1, None], "b": "é"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=10), JSON, max_size=5))
def test_a_document_reads_back_as_it_was_written(content):
    assert decode(encode_document(KIND, 1, content)) == content


def test_every_cut_of_a_document_is_refused():
    data = encode_document(KIND, 1, OLD)
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode(data[:size])


def test_every_flipped_bit_of_a_document_is_refused():
    data = encode_document(KIND, 1, OLD)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            decode(bytes(damaged))


@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_document_of_another_version_is_unknown_and_not_corrupt(version):
    with pytest.raises(UnknownFormat, match=f"expected {KIND} version 1, got .* version {version}"):
        decode(encode_document(KIND, version, OLD))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_document_of_any_version_up_to_the_known_one_is_read(version):
    assert decode_document(encode_document(KIND, version, OLD), KIND, 3) == OLD


@pytest.mark.parametrize("version", [0, -1, 4, "1", None])
def test_a_document_beyond_the_known_versions_is_unknown(version):
    with pytest.raises(
        UnknownFormat, match=f"expected {KIND} version 1-3, got .* version {version}"
    ):
        decode_document(encode_document(KIND, version, OLD), KIND, 3)


def test_a_document_of_another_kind_is_unknown_and_not_corrupt():
    with pytest.raises(UnknownFormat, match="got millstream-other version 1"):
        decode(encode_document("millstream-other", 1, OLD))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(bytes(100), id="zeros"),
        pytest.param(b"[" * 100_000, id="nested too deeply"),
        pytest.param(b"9" * 10_000, id="a number of ten thousand digits"),
        pytest.param(b"[1]\n", id="a list"),
        pytest.param(b'"crc32c"\n', id="a text"),
        pytest.param(b"null\n", id="null"),
        pytest.param(b"{}\n", id="an empty object"),
        pytest.param(b'{"crc32c":"00000000"}\n', id="only a sum"),
        pytest.param(b"\xff\xfe{}\n", id="not UTF-8"),
    ],
)
def test_what_is_no_document_is_refused(data):
    with pytest.raises(CorruptFile):
        decode(data)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"content":{},"version":1}', id="no format"),
        pytest.param(f'{{"content":{{}},"format":"{KIND}"}}', id="no version"),
        pytest.param(f'{{"format":"{KIND}","version":1}}', id="no content"),
        pytest.param(f'{{"content":[],"format":"{KIND}","version":1}}', id="content is a list"),
        pytest.param(f'{{"content":{{}},"format":"{KIND}","more":1,"version":1}}', id="more keys"),
    ],
)
def test_a_right_sum_does_not_make_a_document(text):
    with pytest.raises(CorruptFile):
        decode(sealed_anew(text))


def test_a_document_that_is_laid_out_differently_is_refused():
    data = encode_document(KIND, 1, OLD)
    for other in (data + b"\n", b" " + data, data.rstrip(), data.replace(b",", b", ")):
        with pytest.raises(CorruptFile):
            decode(other)


@given(st.binary(max_size=60))
def test_noise_is_refused(noise):
    with pytest.raises(CorruptFile):
        decode(noise)


# The file.


def test_an_error_names_the_file():
    with pytest.raises(CorruptFile, match=r"^/d/doc\.json: "):
        read(disk_with(b"{}"))
    with pytest.raises(UnknownFormat, match=r"^/d/doc\.json: "):
        read(disk_with(encode_document(KIND, 2, OLD)))


def test_a_document_that_is_not_there_is_not_found():
    with pytest.raises(FileNotFoundError):
        read(SimulatedFilesystem({"/d": None}))


def test_a_file_over_the_limit_is_refused_before_it_is_read():
    disk = disk_with(bytes(DOCUMENT_SIZE_MAX + 1))
    watched = FaultyFilesystem(disk, Fault(call=1_000))
    with pytest.raises(CorruptFile, match=f"{DOCUMENT_SIZE_MAX + 1} bytes, limit is"):
        read(watched)
    assert [call.name for call in watched.calls] == ["open_readonly", "size", "close"]


def test_a_file_at_the_limit_is_looked_at():
    with pytest.raises(CorruptFile, match="not a millstream-test document"):
        read(disk_with(bytes(DOCUMENT_SIZE_MAX)))


def test_a_document_replaces_the_one_before():
    disk = disk_with(encode_document(KIND, 1, OLD))
    write(disk, NEW)
    assert read(disk) == NEW
    assert disk.paths() == ["/d/doc.json"]


def test_what_an_earlier_crash_left_beside_a_document_does_no_harm():
    disk = disk_with(encode_document(KIND, 1, OLD))
    disk.create("/d/doc.json.tmp").close()
    disk.replace_content("/d/doc.json.tmp", b"x" * 10_000)
    write(disk, NEW)
    assert read(disk) == NEW
    assert disk.paths() == ["/d/doc.json"]


def test_a_power_cut_at_any_moment_leaves_the_old_document_or_the_new_one():
    disk = disk_with(encode_document(KIND, 1, OLD))
    write(disk, NEW)
    disk.note("returned")
    found = []
    for state in crash_states(disk.trace, seed=1, randoms=10):
        content = read(state.filesystem())
        assert content in ([NEW] if state.notes else [OLD, NEW]), str(state)
        found.append(content)
    assert OLD in found
    assert NEW in found


def test_a_power_cut_at_any_moment_leaves_a_first_document_or_none():
    disk = SimulatedFilesystem({"/d": None})
    write(disk, NEW)
    disk.note("returned")
    for state in crash_states(disk.trace, seed=1, randoms=10):
        after = state.filesystem()
        if state.notes or "/d/doc.json" in after.paths():
            assert read(after) == NEW, str(state)


def test_a_call_that_fails_leaves_the_old_document_or_the_new_one():
    reached = 0
    for fault in sweep():
        disk = disk_with(encode_document(KIND, 1, OLD))
        try:
            write(FaultyFilesystem(disk, fault), NEW)
        except OSError:
            assert fault.hits
        reached += bool(fault.hits)
        for state in crash_states(disk.trace, seed=1, points=[len(disk.trace.events)]):
            assert read(state.filesystem()) in (OLD, NEW), f"{fault.describe()}, {state}"
    assert reached >= 6, "remove, create, write, sync, close, rename and sync of the directory"
