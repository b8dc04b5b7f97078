"""Requests to a node, encoded as HTTP/1.1."""

from __future__ import annotations

import pytest

from millstream.clients.http.core import requests
from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.transport.http1 import head_of
from millstream.errors import InvalidRequest


def test_a_request_is_written_with_its_address_and_length():
    request = requests.put_topic("a b", {"partitions": 3})
    assert head_of(request, NodeUrl("::1", 80, prefix="/mill")) == (
        b"PUT /mill/v1/topics/a%20b HTTP/1.1\r\nhost: [::1]:80\r\n"
        b"content-length: 16\r\ncontent-type: application/json\r\n\r\n"
    )


def test_a_request_without_a_body_says_nothing_of_one():
    head = head_of(requests.get_topic("t"), NodeUrl("a", 1))
    assert head == b"GET /v1/topics/t HTTP/1.1\r\nhost: a:1\r\n\r\n"


@pytest.mark.parametrize("cursor", ["a:0:1\r\nx: y", "ü:0:1", "a\x00"])
def test_a_cursor_cannot_become_a_header_of_its_own(cursor):
    with pytest.raises(InvalidRequest):
        requests.get_events(["t"], "latest", last_event_id=cursor, exclude_node=None)
