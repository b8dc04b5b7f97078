"""Logins by JWTs at a real node: Kafka clients, HTTP, expiry and rotation of keys."""

from __future__ import annotations

import http.server
import json
import logging
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.access.resources import Operation, ResourceType
from millstream.config.schema import AccessConfig, OAuthConfig, OutboundConfig
from millstream.errors import InvalidConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.sasl import (
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from millstream.testing.broker import RunningBroker, running_broker
from tests.broker.access.jwt.issuer import AUDIENCE, ISSUER, Issuer
from tests.servers.peer.certificates import Authority

from .client import RawClient

TOPIC = "orders"
ROOT = Caller(user("root"), "127.0.0.1")
ACCESS = AccessConfig(enabled=True, super_users=("root",), plain_without_tls=True)
TIMEOUT_S = 30


class Site:
    """A node, its issuer and the file with the keys."""

    def __init__(self, node: RunningBroker, issuer: Issuer) -> None:
        self.node = node
        self.issuer = issuer

    def token(self, key_id: str = "one", **claims: Any) -> str:
        return self.issuer.token(key_id, now_s=int(time.time()), **claims)

    def http(self, token: str, path: str = "/v1/access/whoami") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.node.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    @property
    def access(self) -> Any:
        return self.node.server.broker.access


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer().add_rsa("one").add_rsa("two")


def give_rights(node: RunningBroker) -> None:
    node.run(node.server.broker.topics.create(TOPIC, partitions=1))
    for kind, name in ((ResourceType.TOPIC, TOPIC), (ResourceType.GROUP, "*")):
        for operation in (Operation.READ, Operation.WRITE):
            if (kind, operation) != (ResourceType.GROUP, Operation.WRITE):
                acl = Acl(
                    ResourcePattern(kind, name), user("alice"), "*", operation, Permission.ALLOW
                )
                node.run(node.server.broker.access.create_acl(acl, by=ROOT))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("oauth")
    (path / "jwks.json").write_bytes(issuer.jwks)
    oauth = OAuthConfig(
        issuer=ISSUER, audience=AUDIENCE, jwks_file=str(path / "jwks.json"), leeway_ms=0
    )
    with running_broker(path / "data", access=ACCESS, oauth=oauth) as node:
        give_rights(node)
        yield Site(node, issuer)


# The messages.


class Login:
    """A raw connection that logs in."""

    def __init__(self, site: Site) -> None:
        self.client = RawClient(site.node.bootstrap)

    def send(self, token: str, *, user_name: str = "") -> Any:
        handshake = self.client.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        assert handshake.error_code == 0, handshake
        named = f"a={user_name}" if user_name else ""
        message = f"n,{named},\x01auth=Bearer {token}\x01\x01".encode()
        return self.client.call(SaslAuthenticateRequest(auth_bytes=message), 1)

    def close(self) -> None:
        self.client.socket.close()

    def is_closed_by_peer(self) -> bool:
        with self.client as client:
            return client.is_closed_by_peer()


def test_the_session_ends_with_the_jwt(site: Site):
    login = Login(site)
    answer = login.send(site.token(exp=int(time.time()) + 100))
    assert answer.error_code == ErrorCode.NONE
    assert 90_000 < answer.session_lifetime_ms <= 100_000
    login.close()


def test_a_connection_is_closed_when_its_jwt_has_expired(site: Site):
    login = Login(site)
    answer = login.send(site.token(exp=int(time.time()) + 2))
    assert 0 < answer.session_lifetime_ms <= 2_000
    assert login.is_closed_by_peer()


def test_a_client_logs_in_again_as_the_same_user_with_a_new_jwt(site: Site):
    login = Login(site)
    first = login.send(site.token(exp=int(time.time()) + 100))
    again = login.send(site.token(exp=int(time.time()) + 1000))
    assert again.session_lifetime_ms > first.session_lifetime_ms
    changed = login.send(site.token(sub="bob"))
    assert changed.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert login.is_closed_by_peer()


def test_a_user_cannot_act_for_another_one(site: Site):
    for name, code in (("alice", 0), ("bob", ErrorCode.SASL_AUTHENTICATION_FAILED)):
        login = Login(site)
        assert login.send(site.token(), user_name=name).error_code == code
        login.close()


def test_all_refusals_look_alike_and_tell_nothing(site: Site, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    stranger = Issuer().add_rsa("one")
    tokens = [
        site.token(exp=int(time.time()) - 1),
        site.token(iss="https://evil.example"),
        stranger.token("one", now_s=int(time.time())),
        "no-jwt",
    ]
    answers = set()
    for token in tokens:
        login = Login(site)
        answer = login.send(token)
        answers.add((answer.error_code, answer.error_message, bytes(answer.auth_bytes)))
        assert login.is_closed_by_peer()
    assert len(answers) == 1
    events = [record for record in caplog.records if record.message == "a login failed"]
    assert {record.method for record in events} == {"OAUTHBEARER"}
    assert "the JWT has expired" in {record.reason for record in events}
    for token in tokens[:3]:
        assert token not in caplog.text
        assert token.split(".")[2] not in caplog.text


def test_it_is_offered_only_if_there_is_an_issuer_and_tls_or_force(tmp_path: Path, issuer: Issuer):
    file = tmp_path / "jwks.json"
    file.write_bytes(issuer.jwks)
    oauth = OAuthConfig(issuer=ISSUER, audience=AUDIENCE, jwks_file=str(file))
    for number, (access, settings) in enumerate(
        ((ACCESS, OAuthConfig()), (AccessConfig(enabled=True), oauth))
    ):
        with running_broker(tmp_path / str(number), access=access, oauth=settings) as node:
            client = RawClient(node.bootstrap)
            answer = client.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
            assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert "OAUTHBEARER" not in answer.mechanisms
            client.socket.close()


# HTTP.


def test_a_jwt_is_a_bearer_token_over_http_with_the_rights_of_its_user(site: Site):
    status, who = site.http(site.token())
    assert (status, who["principal"], who["token"]) == (200, "User:alice", None)
    assert site.http(site.token(), f"/v1/topics/{TOPIC}/records")[0] == 200
    assert site.http(site.token(sub="bob"), f"/v1/topics/{TOPIC}/records")[0] == 404


def test_a_jwt_that_is_not_valid_is_refused_over_http(site: Site):
    stranger = Issuer().add_rsa("one").token("one", now_s=int(time.time()))
    for token in (
        site.token(exp=int(time.time()) - 1),
        site.token(aud="another"),
        stranger,
        "a.b.c",
        "nonsense",
        "ms_000000000000_" + "A" * 32,
    ):
        assert site.http(token)[0] == 401, token


def test_a_jwt_that_expires_is_refused_although_it_was_accepted_before(site: Site):
    token = site.token(exp=int(time.time()) + 2)
    assert site.http(token)[0] == 200
    deadline = time.monotonic() + TIMEOUT_S
    while site.http(token)[0] == 200:
        assert time.monotonic() < deadline


def test_an_event_stream_ends_when_its_jwt_expires(site: Site):
    token = site.token(exp=int(time.time()) + 2)
    path = f"{site.node.url}/v1/events?topic={TOPIC}"
    request = urllib.request.Request(path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as stream:
        stream.read()  # Returns when the node ends the stream.


def test_a_jwt_is_checked_once_and_not_for_each_request(site: Site):
    token = site.token()
    before = site.access.counters.logins["OAUTHBEARER"]
    for _ in range(5):
        assert site.http(token)[0] == 200
    assert site.access.counters.logins["OAUTHBEARER"] == before + 1


# Keys from an address.


class KeyHandler(http.server.BaseHTTPRequestHandler):
    content = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        pass


def test_keys_are_fetched_from_an_allowed_address_and_again_for_a_new_key(
    tmp_path: Path, issuer: Issuer
):
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("localhost"))
    handler = type("Handler", (KeyHandler,), {"content": Issuer().add_rsa("old").jwks})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    host = f"localhost:{server.server_address[1]}"
    oauth = OAuthConfig(issuer=ISSUER, audience=AUDIENCE, jwks_url=f"https://{host}/jwks")
    outbound = OutboundConfig(
        allowed_hosts=(host,),
        allowed_networks=("127.0.0.0/8", "::1/128"),
        ca_file=authority.certificate,
    )
    try:
        with running_broker(
            tmp_path / "data", access=ACCESS, oauth=oauth, outbound=outbound
        ) as node:
            site = Site(node, issuer)
            keys = site.access.jwt.keys
            node.run(keys.refreshed())
            assert [key.id for key in keys.keys.keys] == ["old"]
            handler.content = issuer.jwks
            keys._tried_at = None  # Ten seconds later.
            login = Login(site)
            assert login.send(site.token()).error_code == ErrorCode.NONE
            login.close()
            assert site.http(site.token())[0] == 200
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("outbound", "words"),
    [
        (OutboundConfig(), "not one of outbound.allowed_hosts: none"),
        (OutboundConfig(allowed_hosts=("other.example",)), "not one of outbound.allowed_hosts"),
    ],
)
def test_a_node_does_not_start_if_the_address_of_the_keys_is_not_allowed(
    tmp_path: Path, outbound: OutboundConfig, words: str
):
    oauth = OAuthConfig(issuer=ISSUER, audience=AUDIENCE, jwks_url="https://login.example/jwks")
    with (
        pytest.raises(InvalidConfig, match=words),
        running_broker(tmp_path, access=ACCESS, oauth=oauth, outbound=outbound),
    ):
        pass


@pytest.mark.parametrize(
    "settings",
    [
        {"issuer": ISSUER},
        {"issuer": ISSUER, "audience": AUDIENCE},
        {"audience": AUDIENCE},
        {"jwks_file": "x"},
        {"issuer": ISSUER, "jwks_file": "x"},
        {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "x", "jwks_url": "https://a.b/"},
        {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "http://a.b/"},
        {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://u:p@a.b/"},
        {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "x", "algorithms": ()},
        {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "x", "algorithms": ("HS256",)},
        {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "x", "principal_claim": ""},
    ],
    ids=str,
)
def test_settings_that_do_not_belong_together_are_refused(settings: dict[str, Any]):
    with pytest.raises(InvalidConfig):
        OAuthConfig(**settings)
