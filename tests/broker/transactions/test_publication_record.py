"""Encoding of publisher state: it round-trips, and is not read as a transactional id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.transactions.publication import Publication
from millstream.broker.transactions.publication_record import (
    decode_publication,
    encode_publication,
    encode_publication_key,
    is_publication_key,
)
from millstream.broker.transactions.transaction_record import encode_key
from millstream.errors import CorruptData, UnknownFormat

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
KEY = b"\xffpublication:q\xc3\xa4"
KEPT = b'{"version":1,"sequence":41,"update_ms":1700000000000}'
A_PUBLICATION = Publication(publisher="qä", sequence=41, update_ms=1_700_000_000_000)


@given(
    st.builds(
        Publication,
        publisher=TEXT,
        sequence=st.integers(0, 2**63 - 1),
        update_ms=st.integers(0, 2**62),
    )
)
def test_what_is_kept_reads_back_as_it_was(publication: Publication) -> None:
    key = encode_publication_key(publication.publisher)
    assert is_publication_key(key)
    assert decode_publication(key, encode_publication(publication)) == publication


@given(TEXT)
def test_no_transactional_id_is_taken_for_a_publisher(transactional_id: str) -> None:
    assert not is_publication_key(encode_key(transactional_id))


def test_the_format_is_the_one_that_older_releases_wrote() -> None:
    assert decode_publication(KEY, KEPT) == A_PUBLICATION
    assert (encode_publication_key("qä"), encode_publication(A_PUBLICATION)) == (KEY, KEPT)


def test_what_a_newer_release_wrote_is_refused() -> None:
    newer = KEPT.replace(b'"version":1', b'"version":2')
    with pytest.raises(UnknownFormat, match="publisher 'qä' has version 2, expected 1"):
        decode_publication(KEY, newer)


@pytest.mark.parametrize(
    "value",
    [b"", KEPT[:-1], b"[]", KEPT.replace(b"sequence", b"number"), KEPT.replace(b"41", b'"41"')],
)
def test_damage_is_reported_with_the_publisher(value: bytes) -> None:
    with pytest.raises(CorruptData, match="publication:q"):
        decode_publication(KEY, value)


def test_a_publisher_that_is_no_text_is_damage() -> None:
    with pytest.raises(CorruptData):
        decode_publication(KEY[:-1], KEPT)
