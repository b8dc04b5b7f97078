"""Parsing of bootstrap lists."""

from __future__ import annotations

import pytest

from millstream.clients.kafka.address import BrokerAddress, parse_bootstrap
from millstream.errors import InvalidConfig


def test_a_list_is_read_in_order_and_each_address_once():
    found = parse_bootstrap("b:2, a:1,b:2,[::1]:3")
    assert found == (BrokerAddress("b", 2), BrokerAddress("a", 1), BrokerAddress("::1", 3))


def test_an_address_is_written_as_it_is_read():
    for text in ("a:1", "[::1]:9092", "127.0.0.1:65535"):
        assert [str(one) for one in parse_bootstrap(text)] == [text]


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "a:-1", "::1:9", "a:1,", "[]:1"]
)
def test_what_is_no_address_is_refused_by_name(text):
    with pytest.raises(InvalidConfig, match=r"address must be host:port"):
        parse_bootstrap(text)
