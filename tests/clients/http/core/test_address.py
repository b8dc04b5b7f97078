"""Parsing of node addresses."""

from __future__ import annotations

import pytest

from millstream.clients.http.core.address import NodeUrl, parse_node_url
from millstream.errors import InvalidConfig


@pytest.mark.parametrize(
    ("url", "address", "shown"),
    [
        ("http://localhost:8080", NodeUrl("localhost", 8080), "http://localhost:8080"),
        ("http://localhost", NodeUrl("localhost", 80), "http://localhost:80"),
        ("https://a.b", NodeUrl("a.b", 443, is_tls=True), "https://a.b:443"),
        ("http://[::1]:8080/", NodeUrl("::1", 8080), "http://[::1]:8080"),
        ("http://a:1/mill/", NodeUrl("a", 1, prefix="/mill"), "http://a:1/mill"),
    ],
)
def test_an_address_is_read(url, address, shown):
    assert parse_node_url(url) == address
    assert str(address) == shown


@pytest.mark.parametrize(
    "wrong",
    [
        "localhost:8080", "ftp://a", "http://", "http://a:0", "http://a:70000", "http://a:b", "",
        "http://user:secret@a", "http://a?x=1", "http://a#x", "http://a b", "http://a\r\nx: y",
        "http://ü", "http://[::1", "unix:///run/x",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(InvalidConfig):
        parse_node_url(wrong)


@pytest.mark.parametrize("url", ["http://host/v1", "http://host:8080/v1/", "http://host/mill/v1"])
def test_an_address_with_the_path_of_the_api_is_refused_at_once(url):
    with pytest.raises(InvalidConfig, match="address must be without /v1, got"):
        parse_node_url(url)
