"""The message of OAUTHBEARER."""

from __future__ import annotations

import pytest

from millstream.broker.access.sasl.failure import LoginFailed
from millstream.broker.access.sasl.oauth_bearer import read_bearer


@pytest.mark.parametrize(
    ("data", "user"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", None),
        (b"n,a=alice,\x01auth=Bearer a.b.c\x01\x01", "alice"),
        (b"n,a=al=2Cice=3D,\x01auth=bearer a.b.c\x01\x01", "al,ice="),
        (b"n,,\x01host=x\x01port=9092\x01auth=Bearer a.b.c\x01\x01", None),
        (b"n,,\x01auth=Bearer a.b.c\x01traceId=123\x01\x01", None),
    ],
)
def test_a_message_has_a_token_and_may_name_a_user(data, user):
    assert read_bearer(data) == ("a.b.c", user)
    assert "a.b.c" not in repr(read_bearer(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer a.b.c",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,alice,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Basic YTpi\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer d.e.f\x01\x01",
        b"n,,\x01AUTH=Bearer a.b.c\x01auth=Bearer d.e.f\x01\x01",
        b"n,,\x01=x\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01\x01\x01",
        b"n,,\x01auth=Bearer a\x00b\x01\x01",
        b"\xff\xfe",
        b"n,,\x01auth=Bearer " + b"a" * 70_000 + b"\x01\x01",
    ],
)
def test_a_malformed_message_is_refused(data):
    with pytest.raises(LoginFailed):
        read_bearer(data)
