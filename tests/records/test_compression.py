"""The four codecs, their limits, and damaged input."""

from __future__ import annotations

import contextlib
import mmap
import subprocess
import sys
import traceback

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.compression import Codec, compress, decompress

MIB = 1024 * 1024
PACKED = [codec for codec in Codec if codec != Codec.NONE]
every_codec = pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
every_packing = pytest.mark.parametrize("codec", PACKED, ids=lambda codec: codec.name.lower())

# Compressible and not, within one snappy block and over several.
datas = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda piece, times: piece * times, st.binary(max_size=20), st.integers(0, 9000)),
)


@every_codec
@settings(deadline=None, max_examples=50)
@given(data=datas)
def test_what_was_packed_unpacks(codec, data):
    assert decompress(codec, compress(codec, data), size_max=len(data)) == data


@every_codec
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_packs_and_unpacks(codec, kind):
    packed = compress(codec, kind(b"some bytes"))
    assert type(packed) is bytes
    unpacked = decompress(codec, kind(packed))
    assert type(unpacked) is bytes
    assert unpacked == b"some bytes"


@every_packing
def test_what_unpacks_to_far_more_than_guessed_still_unpacks(codec):
    data = bytes(9 * MIB)
    assert decompress(codec, compress(codec, data), size_max=9 * MIB) == data


@every_codec
def test_one_byte_over_the_limit_is_refused(codec):
    with pytest.raises(CorruptBatch, match="9999"):
        decompress(codec, compress(codec, bytes(10_000)), size_max=9999)


def test_a_bare_snappy_block_unpacks_as_librdkafka_writes_it():
    block = bytes(cramjam.snappy.compress_raw(b"hello " * 10_000))
    assert decompress(Codec.SNAPPY, block) == b"hello " * 10_000


def test_snappy_is_written_in_the_framing_that_java_expects():
    packed = compress(Codec.SNAPPY, b"ab")
    # Magic, version 1, readable from version 1 on, a block of 4 bytes: length 2, a literal of 2.
    assert packed.hex(" ", -4) == "82534e41 50505900 00000001 00000001 00000004 02046162"


def test_snappy_blocks_hold_32_kib_each():
    packed = compress(Codec.SNAPPY, bytes(70_000))
    sizes, position = [], 16
    while position < len(packed):
        end = position + 4 + int.from_bytes(packed[position : position + 4], "big")
        sizes.append(len(cramjam.snappy.decompress_raw(packed[position + 4 : end])))
        position = end
    assert sizes == [32768, 32768, 70_000 - 65536]


def test_lz4_blocks_are_independent_since_java_reads_no_others():
    packed = compress(Codec.LZ4, bytes(200_000))
    assert packed[:4].hex() == "04224d18"
    assert packed[4] & 0x20


def test_linked_lz4_blocks_are_read_all_the_same():
    data = b"hello world " * 20_000
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(data))) == data


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_refused(codec):
    with pytest.raises(CorruptBatch, match=f"codec must be between 0 and 4, got {codec}"):
        decompress(codec, b"anything")


@every_packing
def test_every_cut_is_refused(codec):
    packed = compress(codec, b"hello world " * 5)
    whole_blocks = {16} if codec == Codec.SNAPPY else set()  # A frame of no blocks is a frame.
    for size in set(range(len(packed))) - whole_blocks:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:size])


@every_packing
def test_bytes_after_the_frame_are_refused(codec):
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, b"hello world") + b"!!!!!")


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("000000", "block size ends at byte 20, the body at 19"),
        ("00000005 02046162", "block must have 5 bytes, .* got 4"),
        ("ffffffff 02046162", "block must have -1 bytes, .* got 4"),
        ("00000000 02046162", "block must have 0 bytes, .* got 4"),
    ],
)
def test_a_snappy_frame_that_contradicts_itself_is_refused(block, message):
    frame = compress(Codec.SNAPPY, b"") + bytes.fromhex(block)
    with pytest.raises(CorruptBatch, match=message):
        decompress(Codec.SNAPPY, frame)


@st.composite
def damaged(draw):
    """Draw a codec and a frame of it with a few bytes changed, cut or added, or all random."""
    codec = draw(st.sampled_from(PACKED))
    frame = bytearray(compress(codec, draw(datas)))
    for _ in range(draw(st.integers(0, 4))):
        position = draw(st.integers(0, min(len(frame) - 1, 40)))
        frame[position] = draw(st.integers(0, 255))
    kept = draw(st.one_of(st.just(len(frame)), st.integers(0, len(frame))))
    return codec, bytes(frame[:kept]) + draw(st.binary(max_size=30))


@settings(deadline=None, max_examples=500)
@given(damaged(), st.integers(0, 20_000))
def test_damage_is_refused_or_unpacked_but_never_crashes(case, size_max):
    codec, frame = case
    with contextlib.suppress(CorruptBatch):
        assert len(decompress(codec, frame, size_max=size_max)) <= size_max


def gzip_bomb():
    """Return 1 MiB that decompresses to 1 GiB."""
    return bytes(cramjam.gzip.compress(bytes(64 * MIB))) * 16


def snappy_bomb():
    return compress(Codec.SNAPPY, bytes(256 * MIB))


def bare_snappy_bomb():
    return bytes(cramjam.snappy.compress_raw(bytes(256 * MIB)))


def lying_snappy_bomb():
    """Return six bytes that declare a decompressed size of 4 GiB."""
    return bytes.fromhex("ffffffff0f 00")


def lz4_bomb():
    return bytes(cramjam.lz4.compress(bytes(256 * MIB)))


def zstd_bomb():
    """Return 1 MiB that decompresses to 32 GiB.

    It has a window of 128 MiB, then runs of 128 KiB in 4 bytes each.
    """
    run = (0x20000 << 3 | 2).to_bytes(3, "little") + b"\0"
    return bytes.fromhex("28b52ffd 00 88") + run * (MIB // 4)


BOMBS = [
    (Codec.GZIP, gzip_bomb),
    (Codec.SNAPPY, snappy_bomb),
    (Codec.SNAPPY, bare_snappy_bomb),
    (Codec.SNAPPY, lying_snappy_bomb),
    (Codec.LZ4, lz4_bomb),
    (Codec.ZSTD, zstd_bomb),
]

UNPACK = """
import resource, sys
from millstream.errors import CorruptBatch
from millstream.records.compression import decompress

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

bomb, size_max, before = sys.stdin.buffer.read(), int(sys.argv[2]), peak()
try:
    decompress(int(sys.argv[1]), bomb, size_max=size_max)
except CorruptBatch as error:
    print(peak() - before, error)
"""


@pytest.mark.parametrize(("codec", "make"), BOMBS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_bomb_costs_no_more_than_twice_the_limit_and_the_error_names_it(codec, make):
    size_max = 32 * MIB
    command = [sys.executable, "-c", UNPACK, str(int(codec)), str(size_max)]
    done = subprocess.run(command, input=make(), capture_output=True, timeout=120, check=True)
    peak, message = done.stdout.decode().split(" ", 1)
    assert str(size_max) in message
    assert int(peak) < 2 * size_max + 8 * MIB


@pytest.mark.parametrize("size", [3 * MIB, 64 * MIB], ids=["damaged", "too large"])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
def test_an_error_holds_none_of_the_bytes_that_were_decompressed(codec, size):
    """A server keeps an error longer than the memory that it allows for decompression."""
    packed = compress(codec, bytes(size))
    with pytest.raises(CorruptBatch) as raised:
        decompress(codec, packed[:-20] if size == 3 * MIB else packed, size_max=4 * MIB)
    held = [
        len(value)
        for error in (raised.value, raised.value.__cause__, raised.value.__context__)
        if error is not None
        for frame, _ in traceback.walk_tb(error.__traceback__)
        for value in frame.f_locals.values()
        if isinstance(value, bytes | bytearray | memoryview | mmap.mmap)
    ]
    assert held, "the compressed bytes are there"
    assert max(held) <= len(packed)
