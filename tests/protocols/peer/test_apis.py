"""The table of APIs between peers."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.codec.declaration import versions_of
from millstream.protocols.kafka.codec.layout import layout_of
from millstream.protocols.kafka.codec.primitives import RecordData
from millstream.protocols.peer.apis import ANNOUNCED, API_OF_REQUEST, PEER_APIS
from millstream.protocols.peer.handshake import Purpose

every_api = pytest.mark.parametrize("api", PEER_APIS.values(), ids=lambda api: api.name)


@every_api
def test_request_and_response_have_the_same_versions(api):
    assert versions_of(api.request) == versions_of(api.response) == api.versions


@every_api
def test_an_api_has_a_purpose(api):
    assert api.purposes
    assert API_OF_REQUEST[api.request] is api


@every_api
def test_the_table_knows_which_requests_refer_to_their_frame(api):
    parts = layout_of(api.request, api.versions.last).plain
    assert api.has_views == any(isinstance(part.kind, RecordData) for part in parts)


def test_replication_has_connections_that_nothing_else_uses():
    names = {api.name for api in PEER_APIS.values() if Purpose.REPLICATION in api.purposes}
    assert names == {"Ping", "PeerFetch", "SegmentManifest", "SegmentChunk"}


def test_all_of_them_are_announced():
    assert [api.key for api in ANNOUNCED] == list(PEER_APIS)
