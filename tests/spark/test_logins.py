"""Spark reads and writes topics of a node with TLS and logins."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.principal import user
from millstream.broker.access.sasl.scram import make_credential
from millstream.config.schema import AccessConfig, TlsConfig
from millstream.spark import source_cache
from millstream.testing.broker import running_broker
from tests.servers.peer.certificates import Authority


def test_a_table_is_written_and_read_with_a_login(spark, tmp_path):
    authority = Authority(tmp_path)
    certificate = authority.issue("node")
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    access = AccessConfig(enabled=True, super_users=("alice",))
    tls = TlsConfig(cert_file=certificate, key_file=certificate)
    with running_broker(tmp_path / "data", access=access, tls=tls) as broker:
        gate = broker.server.broker.access
        made = make_credential(ScramMechanism.SHA_256, "correct horse", salt=b"s", iterations=4096)
        by = Caller(user("root"))
        broker.run(gate.put_scram("alice", ScramMechanism.SHA_256, made, by=by))
        broker.run(broker.server.broker.topics.create("orders", partitions=2))
        options = {
            "bootstrap.servers": broker.bootstrap,
            "topic": "orders",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority.certificate,
            "sasl.username": "alice",
            "sasl.passwordFile": str(password),
        }
        rows = spark.createDataFrame([(b"a",), (b"b",)], "value binary")
        rows.write.format("millstream").options(**options).mode("append").save()
        read = spark.read.format("millstream").options(**options).load()
        assert sorted(bytes(row.value) for row in read.select("value").collect()) == [b"a", b"b"]
        without = {name: value for name, value in options.items() if "sasl" not in name}
        without["security.protocol"] = "SSL"
        with pytest.raises(PySparkException, match="does not exist"):
            spark.read.format("millstream").options(**without).load().collect()
        while source_cache._sources:
            source_cache._sources.popitem()[1].close()
