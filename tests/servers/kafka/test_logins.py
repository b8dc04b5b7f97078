"""Logins by SASL over real connections: who gets in, for how long, and what others are told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.principal import user
from millstream.broker.access.resources import CLUSTER_NAME, Operation, ResourceType
from millstream.broker.access.sasl.scram import make_credential, make_salt, salted_password
from millstream.config.schema import AccessConfig, SaslMechanism, TlsConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.kafka.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from millstream.protocols.kafka.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestDeletion,
    AlterUserScramCredentialsRequestUpsertion,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequestUser,
)
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.peer.certificates import Authority

from .client import RawClient

SHA_256, SHA_512 = ScramMechanism
ROOT = Caller(user("root"), "127.0.0.1")
TOPIC = "orders"
PASSWORD = "correct horse"
FAILED = "the login failed: user or password is wrong, or the message is malformed"


def access_config(**settings: Any) -> AccessConfig:
    return AccessConfig(enabled=True, super_users=("root",), scram_iterations=4096, **settings)


def add_user(broker: RunningBroker, name: str, password: str = PASSWORD) -> None:
    access = broker.server.broker.access
    assert access is not None
    for mechanism in ScramMechanism:
        salt = make_salt(hashlib.sha256(name.encode()).digest())
        credential = make_credential(mechanism, password, salt=salt, iterations=4096)
        broker.run(access.put_scram(name, mechanism, credential, by=ROOT))


def prepare(broker: RunningBroker) -> None:
    access = broker.server.broker.access
    assert access is not None
    broker.run(broker.server.broker.topics.create(TOPIC, partitions=1))
    add_user(broker, "alice")
    add_user(broker, "root")
    pattern = ResourcePattern(ResourceType.TOPIC, TOPIC)
    acl = Acl(pattern, user("alice"), "*", Operation.DESCRIBE, Permission.ALLOW)
    broker.run(access.create_acl(acl, by=ROOT))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    certificate = authority.issue("node")
    tls = TlsConfig(cert_file=certificate, key_file=certificate)
    folder = tmp_path_factory.mktemp("broker")
    with running_broker(folder, access=access_config(), tls=tls) as running:
        prepare(running)
        yield running


@pytest.fixture(autouse=True)
def no_failures_so_far(request: pytest.FixtureRequest) -> None:
    """Failed logins of one test do not slow the next."""
    if "broker" in request.fixturenames:
        listener = request.getfixturevalue("broker").server._kafka
        listener.logins.limits._failures.clear()


@pytest.fixture
def client(broker: RunningBroker, authority: Authority) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap, tls=authority.client_context(None)) as connected:
        yield connected


def handshake(client: RawClient, mechanism: str) -> Any:
    return client.call(SaslHandshakeRequest(mechanism=mechanism))


def say(client: RawClient, message: bytes) -> SaslAuthenticateResponse:
    answer: SaslAuthenticateResponse = client.call(SaslAuthenticateRequest(auth_bytes=message))
    return answer


def log_in_by_scram(
    client: RawClient, name: str, password: str = PASSWORD, mechanism: ScramMechanism = SHA_256
) -> SaslAuthenticateResponse:
    assert handshake(client, mechanism.value).error_code == 0
    first = f"n={name},r=nonce"
    challenge = say(client, f"n,,{first}".encode())
    assert challenge.error_code == 0
    return say(client, proof(mechanism, first, bytes(challenge.auth_bytes).decode(), password))


def proof(mechanism: ScramMechanism, first: str, challenge: str, password: str) -> bytes:
    nonce, salt, iterations = (field[2:] for field in challenge.split(","))
    digest = mechanism.value.removeprefix("SCRAM-").replace("-", "").lower()
    salted = salted_password(mechanism, password, base64.b64decode(salt), int(iterations))
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    bare = f"c=biws,r={nonce}"
    signature = hmac.digest(stored_key, f"{first},{challenge},{bare}".encode(), digest)
    made = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{bare},p={base64.b64encode(made).decode()}".encode()


def sees_topic(client: RawClient) -> bool:
    request = MetadataRequest(
        topics=(MetadataRequestTopic(name=TOPIC),), allow_auto_topic_creation=False
    )
    return client.call(request).topics[0].error_code == 0


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_user_who_knows_the_password_has_its_rights(
    client: RawClient, mechanism: ScramMechanism
) -> None:
    assert not sees_topic(client)
    response = log_in_by_scram(client, "alice", mechanism=mechanism)
    assert response.error_code == 0
    assert bytes(response.auth_bytes).startswith(b"v=")
    assert response.session_lifetime_ms == 0
    assert sees_topic(client)


def test_a_password_in_clear_text_is_taken_by_tls(client: RawClient) -> None:
    assert handshake(client, "PLAIN").error_code == 0
    assert say(client, f"\0alice\0{PASSWORD}".encode()).error_code == 0
    assert sees_topic(client)


def test_a_failed_login_is_answered_alike_and_ends_the_connection(
    broker: RunningBroker, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    answers = set()
    for name, password in (("alice", "mistaken"), ("nobody", PASSWORD), ("nobody", "")):
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
            with RawClient(broker.bootstrap, tls=authority.client_context(None)) as client:
                if mechanism == "PLAIN":
                    assert handshake(client, mechanism).error_code == 0
                    answer = say(client, f"\0{name}\0{password}".encode())
                else:
                    kind = ScramMechanism(mechanism)
                    answer = log_in_by_scram(client, name, password, kind)
                answers.add((answer.error_code, answer.error_message, bytes(answer.auth_bytes)))
                assert client.is_closed_by_peer()
        broker.server._kafka.logins.limits._failures.clear()  # type: ignore[union-attr]
    assert answers == {(ErrorCode.SASL_AUTHENTICATION_FAILED, FAILED, b"")}
    assert PASSWORD not in caplog.text
    assert "mistaken" not in " ".join(str(vars(record)) for record in caplog.records)


def test_nothing_is_begun_behind_a_failed_login(client: RawClient) -> None:
    assert handshake(client, "PLAIN").error_code == 0
    client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"))
    client.send(SaslHandshakeRequest(mechanism="PLAIN"))
    client.send(SaslAuthenticateRequest(auth_bytes=f"\0alice\0{PASSWORD}".encode()))
    assert client.receive().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.is_closed_by_peer()


def test_messages_out_of_order_are_refused(client: RawClient) -> None:
    refused = say(client, b"\0alice\0secret")
    assert refused.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert log_in_by_scram(client, "alice").error_code == 0
    assert say(client, b"anything").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert sees_topic(client)


@pytest.mark.parametrize("mechanism", ["GSSAPI", "plain", "", "SCRAM-SHA-1", "OAUTHBEARER"])
def test_other_mechanisms_are_refused_with_a_list_of_those_that_are_offered(
    client: RawClient, mechanism: str
) -> None:
    refused = handshake(client, mechanism)
    assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert refused.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


def test_logins_without_frames_of_kafka_are_refused(client: RawClient) -> None:
    refused = client.call(SaslHandshakeRequest(mechanism="PLAIN"), version=0)
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_connection_logs_in_again_as_the_same_user_only(
    client: RawClient, broker: RunningBroker
) -> None:
    assert log_in_by_scram(client, "alice").error_code == 0
    assert log_in_by_scram(client, "alice", mechanism=SHA_512).error_code == 0
    assert sees_topic(client)
    assert log_in_by_scram(client, "root").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.is_closed_by_peer()


def test_a_proof_that_was_recorded_does_not_log_in_again(
    broker: RunningBroker, authority: Authority
) -> None:
    recorded = b""
    for attempt in range(2):
        with RawClient(broker.bootstrap, tls=authority.client_context(None)) as client:
            assert handshake(client, "SCRAM-SHA-256").error_code == 0
            challenge = bytes(say(client, b"n,,n=alice,r=nonce").auth_bytes).decode()
            recorded = recorded or proof(SHA_256, "n=alice,r=nonce", challenge, PASSWORD)
            answer = say(client, recorded)
            assert (answer.error_code == 0) == (attempt == 0)


def test_a_changed_password_ends_the_connections_that_used_the_old_one(
    client: RawClient, broker: RunningBroker
) -> None:
    add_user(broker, "carol")
    assert log_in_by_scram(client, "carol").error_code == 0
    add_user(broker, "carol", "another one")
    assert client.is_closed_by_peer()


def test_plain_is_not_offered_without_tls_unless_it_is_forced(tmp_path: Path) -> None:
    for is_forced in (False, True):
        config = access_config(plain_without_tls=is_forced)
        with running_broker(tmp_path / str(is_forced), access=config) as broker:
            prepare(broker)
            with RawClient(broker.bootstrap) as client:
                answer = handshake(client, "PLAIN")
                assert (answer.error_code == 0) == is_forced
                assert ("PLAIN" in answer.mechanisms) == is_forced
                if not is_forced:
                    assert log_in_by_scram(client, "alice").error_code == 0


def test_only_the_mechanisms_of_the_settings_are_offered(tmp_path: Path) -> None:
    config = access_config(sasl_mechanisms=(SaslMechanism.SCRAM_SHA_512,))
    with running_broker(tmp_path, access=config) as broker, RawClient(broker.bootstrap) as client:
        assert handshake(client, "SCRAM-SHA-256").mechanisms == ("SCRAM-SHA-512",)


def test_a_session_ends_unless_the_client_logs_in_again(tmp_path: Path) -> None:
    with running_broker(tmp_path, access=access_config(session_ms_max=300)) as broker:
        prepare(broker)
        with RawClient(broker.bootstrap) as lazy, RawClient(broker.bootstrap) as diligent:
            assert log_in_by_scram(lazy, "alice").session_lifetime_ms == 300
            assert log_in_by_scram(diligent, "alice").session_lifetime_ms == 300
            assert log_in_by_scram(diligent, "alice").session_lifetime_ms == 300
            assert lazy.is_closed_by_peer()


def test_unknown_users_get_the_same_salt_after_a_restart(tmp_path: Path) -> None:
    salts = set()
    for _ in range(2):
        with (
            running_broker(tmp_path, access=access_config()) as broker,
            RawClient(broker.bootstrap) as client,
        ):
            assert handshake(client, "SCRAM-SHA-256").error_code == 0
            challenge = bytes(say(client, b"n,,n=nobody,r=nonce").auth_bytes).decode()
            salts.add(challenge.split(",")[1])
    assert len(salts) == 1


def test_unknown_users_have_the_iterations_that_known_ones_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's tools make credentials with 4,096 iterations; this node would with 15,000."""
    config = AccessConfig(
        enabled=True, super_users=("root",), scram_iterations=15_000, plain_without_tls=True,
        sasl_mechanisms=tuple(SaslMechanism),
    )  # fmt: skip
    with running_broker(tmp_path, access=config) as broker:
        access = broker.server.broker.access
        assert access is not None
        hashed: list[tuple[Any, ...]] = []
        real = hashlib.pbkdf2_hmac

        def noted(*arguments: Any) -> bytes:
            hashed.append((arguments[0], arguments[3]))
            return real(*arguments)

        def iterations(name: str) -> set[str]:
            with RawClient(broker.bootstrap) as client:
                assert handshake(client, "SCRAM-SHA-512").error_code == 0
                challenge = say(client, f"n,,n={name},r=nonce".encode())
                return {bytes(challenge.auth_bytes).decode().rpartition(",i=")[2]}

        assert iterations("alice") == {"15000"}, "there is nobody to look like"
        for number in range(3):
            credential = make_credential(SHA_512, PASSWORD, salt=b"salt", iterations=4096)
            broker.run(access.put_scram(f"user-{number}", SHA_512, credential, by=ROOT))
        names = [f"user-{number}" for number in range(10)]
        assert set().union(*map(iterations, names)) == {"4096"}
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", noted)
        for name in ("user-0", "user-9"):
            with RawClient(broker.bootstrap) as client:
                assert handshake(client, "PLAIN").error_code == 0
                say(client, f"\0{name}\0wrong".encode())
        assert hashed == [("sha512", 4096)] * 2


def test_wrong_passwords_of_one_address_are_slowed_and_then_not_evaluated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with running_broker(tmp_path, access=access_config()) as broker:
        prepare(broker)
        logins = broker.server._kafka.logins  # type: ignore[union-attr]
        assert logins is not None
        waits: list[float] = []

        async def note(seconds: float) -> None:
            waits.append(seconds)

        logins._pause = note
        for _ in range(40):
            with RawClient(broker.bootstrap) as client:
                answer = log_in_by_scram(client, "alice", "wrong")
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert waits
        assert len(waits) < 39, "some were refused at once"
        assert logins.access.counters.failed_logins["SCRAM-SHA-256"] == 40


def test_too_many_passwords_at_once_are_refused_and_not_queued(
    broker: RunningBroker, authority: Authority, client: RawClient
) -> None:
    logins = broker.server._kafka.logins  # type: ignore[union-attr]
    assert logins is not None
    logins._hashing_count += 32
    try:
        assert handshake(client, "PLAIN").error_code == 0
        answer = say(client, f"\0alice\0{PASSWORD}".encode())
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    finally:
        logins._hashing_count -= 32


def test_passwords_are_hashed_outside_the_event_loop(
    broker: RunningBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    real = hashlib.pbkdf2_hmac

    def noted(*arguments: Any) -> bytes:
        names.append(threading.current_thread().name)
        return real(*arguments)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", noted)
    assert handshake(client, "PLAIN").error_code == 0
    assert say(client, f"\0alice\0{PASSWORD}".encode()).error_code == 0
    assert names
    assert all(name.startswith("millstream-login") for name in names)


# Credentials of users.


def upsertion(name: str, **changes: Any) -> AlterUserScramCredentialsRequestUpsertion:
    fields = {
        "mechanism": 1,
        "iterations": 8192,
        "salt": b"salt",
        "salted_password": salted_password(SHA_256, "new", b"salt", 8192),
        **changes,
    }
    return AlterUserScramCredentialsRequestUpsertion(name=name, **fields)


def alter(client: RawClient, *upsertions: Any, deletions: Any = ()) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=tuple(deletions), upsertions=tuple(upsertions)
    )
    return {result.user: result.error_code for result in client.call(request).results}


def described(client: RawClient, *names: str) -> dict[str, Any]:
    users = tuple(DescribeUserScramCredentialsRequestUser(name=name) for name in names)
    response = client.call(DescribeUserScramCredentialsRequest(users=users or None))
    assert response.error_code == 0
    return {
        result.user: result.error_code
        or [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in response.results
    }


def test_credentials_are_made_described_and_deleted_by_those_who_may(
    client: RawClient, broker: RunningBroker, authority: Authority
) -> None:
    assert alter(client, upsertion("bob")) == {"bob": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    refused = client.call(DescribeUserScramCredentialsRequest(users=None))
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert refused.results == ()
    assert log_in_by_scram(client, "root").error_code == 0
    assert alter(client, upsertion("bob")) == {"bob": 0}
    assert described(client, "bob", "nobody") == {
        "bob": [(1, 8192)],
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert "alice" in described(client)
    with RawClient(broker.bootstrap, tls=authority.client_context(None)) as other:
        assert log_in_by_scram(other, "bob", "new").error_code == 0
        deletion = AlterUserScramCredentialsRequestDeletion(name="bob", mechanism=1)
        assert alter(client, deletions=[deletion]) == {"bob": 0}
        assert other.is_closed_by_peer()
    assert alter(client, deletions=[deletion]) == {"bob": ErrorCode.RESOURCE_NOT_FOUND}


def test_the_password_of_a_super_user_is_set_by_super_users_only(
    broker: RunningBroker, client: RawClient, authority: Authority
) -> None:
    access = broker.server.broker.access
    assert access is not None
    add_user(broker, "admin")
    pattern = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)
    acl = Acl(pattern, user("admin"), "*", Operation.ALL, Permission.ALLOW)
    broker.run(access.create_acl(acl, by=ROOT))
    assert log_in_by_scram(client, "admin").error_code == 0
    mixed = alter(client, upsertion("root"), upsertion("frank"))
    assert mixed == {"root": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "frank": 0}
    with RawClient(broker.bootstrap, tls=authority.client_context(None)) as other:
        failed = log_in_by_scram(other, "root", "new")
        assert failed.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    with RawClient(broker.bootstrap, tls=authority.client_context(None)) as other:
        assert log_in_by_scram(other, "root").error_code == 0, "the old password holds"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 2**31 - 1}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salted_password": b"short"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": "a\n"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_a_weak_or_malformed_credential_is_refused(
    client: RawClient, changes: dict[str, Any], code: ErrorCode
) -> None:
    assert log_in_by_scram(client, "root").error_code == 0
    name = changes.pop("name", "dave")
    assert alter(client, upsertion(name, **changes)) == {name: code}
    assert "dave" not in described(client)


def test_a_user_is_changed_as_a_whole_or_not_at_all(client: RawClient) -> None:
    assert log_in_by_scram(client, "root").error_code == 0
    twice = alter(client, upsertion("erin"), upsertion("erin"))
    assert twice == {"erin": ErrorCode.DUPLICATE_RESOURCE}
    long = upsertion("erin", mechanism=2)  # With the hash of the other mechanism.
    assert alter(client, upsertion("erin"), long) == {"erin": ErrorCode.UNACCEPTABLE_CREDENTIAL}
    assert "erin" not in described(client)
    assert described(client, "alice", "alice") == {"alice": ErrorCode.DUPLICATE_RESOURCE}
