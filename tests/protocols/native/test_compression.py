"""Compressed native payloads: what they may grow to is known before they are opened."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.protocols.native.compression import (
    LZ4,
    ZSTD,
    compress_payload,
    decompress_payload,
    plain_size,
)

CODECS = pytest.mark.parametrize("codec", [LZ4, ZSTD])
TEXT = b"text that repeats, " * 50


@given(st.sampled_from([LZ4, ZSTD]), st.binary(min_size=1, max_size=500))
def test_what_was_compressed_is_decompressed(codec, payload):
    assert decompress_payload(compress_payload(codec, payload), size_max=500) == payload


def test_an_lz4_payload_of_the_published_form_is_read():
    # Codec, size, size once more, and a block with one literal run.
    payload = bytes.fromhex("01 03000000 03000000 30 616263")
    assert decompress_payload(payload, size_max=10) == b"abc"


@CODECS
def test_a_payload_that_claims_too_much_is_not_opened(codec):
    compressed = compress_payload(codec, TEXT)
    with pytest.raises(
        MalformedRequest, match=f"at most 10 bytes when decompressed, got {len(TEXT)}"
    ):
        plain_size(compressed, size_max=10)


@CODECS
@pytest.mark.parametrize("claimed", [1, len(TEXT) - 1, len(TEXT) + 1, 1_000_000])
def test_a_payload_that_is_not_as_large_as_it_claims_is_refused(codec, claimed):
    compressed = bytearray(compress_payload(codec, TEXT))
    compressed[1:5] = struct.pack("<I", claimed)
    if codec == LZ4:
        compressed[5:9] = struct.pack("<I", claimed)
    with pytest.raises(MalformedRequest):
        decompress_payload(bytes(compressed), size_max=1_000_000)


@CODECS
def test_every_cut_of_a_compressed_payload_is_refused(codec):
    compressed = compress_payload(codec, TEXT)
    for size in range(len(compressed)):
        with pytest.raises(MalformedRequest):
            decompress_payload(compressed[:size], size_max=10_000)


@given(st.binary(max_size=60))
def test_noise_is_refused_or_decompressed_within_its_limit(noise):
    with contextlib.suppress(MalformedRequest):
        assert len(decompress_payload(noise, size_max=1000)) <= 1000


def test_an_unknown_codec_is_named():
    with pytest.raises(MalformedRequest, match="codec of a payload must be 1 or 2, got 3"):
        plain_size(b"\3" + bytes(10), size_max=100)
