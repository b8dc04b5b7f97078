"""Clients of others log in by JWTs over TLS: OAUTHBEARER."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import warnings
from collections.abc import Iterator
from typing import Any

import aiokafka
import pytest
from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from millstream.config.schema import AccessConfig, OAuthConfig, TlsConfig
from millstream.testing.broker import running_broker
from tests.broker.access.jwt.issuer import AUDIENCE, ISSUER, Issuer
from tests.servers.kafka.test_oauth import TOPIC, Site, give_rights
from tests.servers.peer.certificates import Authority

from .conftest import TIMEOUT_S

with warnings.catch_warnings():
    # kafka-python loads its schemas through a part of the standard library that is on its way out.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.net.sasl.oauth import AbstractTokenProvider

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("oauth")
    issuer = Issuer().add_rsa("one")
    (path / "jwks.json").write_bytes(issuer.jwks)
    oauth = OAuthConfig(issuer=ISSUER, audience=AUDIENCE, jwks_file=str(path / "jwks.json"))
    both = authority.issue("server")
    tls = TlsConfig(cert_file=both, key_file=both)
    access = AccessConfig(enabled=True, super_users=("root",))
    with running_broker(path / "data", access=access, oauth=oauth, tls=tls) as node:
        give_rights(node)
        yield Site(node, issuer)


def librdkafka(site: Site, authority: Authority, token: str, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": site.node.bootstrap,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": authority.certificate,
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + 500),
        "logger": logging.getLogger("quiet"),
        **settings,
    }


def test_confluent_kafka_logs_in_by_jwt(site: Site, authority: Authority):
    token = site.token()
    producer = Producer(librdkafka(site, authority, token))
    delivered: list[Any] = []
    producer.produce(TOPIC, b"from confluent", callback=lambda error, _: delivered.append(error))
    producer.flush(TIMEOUT_S)
    assert delivered == [None]
    settings = {"group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(librdkafka(site, authority, token, **settings))
    consumer.subscribe([TOPIC])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error() is None
    consumer.close()


def test_confluent_kafka_with_a_jwt_of_another_issuer_gets_nothing(
    site: Site, authority: Authority
):
    token = Issuer().add_rsa("one").token("one", now_s=int(time.time()))
    admin = AdminClient(librdkafka(site, authority, token))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)


def test_kafka_python_logs_in_by_jwt(site: Site, authority: Authority):
    token = site.token()

    class Provider(AbstractTokenProvider):
        def token(self) -> str:
            return token

    producer = kafka.KafkaProducer(
        bootstrap_servers=site.node.bootstrap,
        security_protocol="SASL_SSL",
        ssl_cafile=authority.certificate,
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    assert producer.send(TOPIC, b"from kafka-python").get(TIMEOUT_S).offset >= 0
    producer.close()


def test_aiokafka_logs_in_by_jwt(site: Site, authority: Authority):
    token = site.token()

    class Provider(AsyncTokenProvider):
        async def token(self) -> str:
            return token

    async def produce() -> int:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=site.node.bootstrap,
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=authority.certificate),
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(),
        )
        await producer.start()
        try:
            return int((await producer.send_and_wait(TOPIC, b"from aiokafka")).offset)
        finally:
            await producer.stop()

    assert asyncio.run(produce()) >= 0
