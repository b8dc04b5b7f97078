"""Paths of streams never become names on the disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.streams.paths import PATH_SIZE_MAX, check_path, topic_of_path
from millstream.errors import InvalidName
from millstream.storage.files.names import is_topic


def test_a_path_that_a_topic_may_be_called_is_the_name_of_the_topic() -> None:
    assert topic_of_path("orders.v1") == "orders.v1"


@pytest.mark.parametrize("path", [".", "..", "__consumer_offsets", "a/b", "a b", "A" * 250, "é"])
def test_any_other_path_is_hashed(path: str) -> None:
    name = topic_of_path(path)
    assert is_topic(name)
    assert name != path


@given(st.text(min_size=1, max_size=300))
def test_every_path_has_a_topic_of_its_own(path: str) -> None:
    assert is_topic(topic_of_path(path))
    assert topic_of_path(path) != topic_of_path(path + "/")


def test_paths_that_look_alike_are_different_streams() -> None:
    alike = ["a/b", "a//b", "a/b/", "/a/b", "A/B", "a%2Fb", "a\\b", "a/./b", "e\u0301/", "\u00e9/"]
    assert len({topic_of_path(path).lower() for path in alike}) == len(alike)


@pytest.mark.parametrize("path", ["", "a\0b", "a\nb", "a\rb", "\x7f", "a" * (PATH_SIZE_MAX + 1)])
def test_what_is_no_text_for_a_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        check_path(path)
