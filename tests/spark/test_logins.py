"""Spark reads and writes topics of a node with TLS and logins, and writes no secret anywhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.principal import user
from millstream.broker.access.sasl.scram import make_credential
from millstream.clients.kafka.security import parse_security
from millstream.config.schema import AccessConfig, TlsConfig
from millstream.spark import source_cache
from millstream.spark.maintenance.topics import JobTarget, replay
from millstream.testing.broker import running_broker
from tests.cli.nodes import MILLSTREAM
from tests.servers.peer.certificates import Authority

PASSWORD = "correct horse"
SECONDS_MAX = 240


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority, tmp_path_factory):
    certificate = authority.issue("node")
    access = AccessConfig(enabled=True, super_users=("alice",), scram_iterations=4096)
    tls = TlsConfig(cert_file=certificate, key_file=certificate)
    with running_broker(tmp_path_factory.mktemp("data"), access=access, tls=tls) as broker:
        gate = broker.server.broker.access
        made = make_credential(ScramMechanism.SHA_256, PASSWORD, salt=b"s", iterations=4096)
        by = Caller(user("alice"))
        broker.run(gate.put_scram("alice", ScramMechanism.SHA_256, made, by=by))
        yield broker
        while source_cache._sources:
            source_cache._sources.popitem()[1].close()


@pytest.fixture
def password_file(tmp_path):
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    return str(file)


@pytest.fixture
def options(secure, authority, password_file):
    return {
        "bootstrap.servers": secure.bootstrap,
        "ssl.ca.location": authority.certificate,
        "sasl.username": "alice",
        "sasl.passwordFile": password_file,
    }


def create(broker, name):
    broker.run(broker.server.broker.topics.create(name, partitions=2))
    return name


def values(spark, options, topic):
    frame = spark.read.format("millstream").options(**options, topic=topic).load()
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def write(spark, options, topic):
    rows = spark.createDataFrame([(b"a",), (b"b",)], "value binary")
    rows.write.format("millstream").options(**options, topic=topic).mode("append").save()


def test_a_table_is_written_and_read_with_a_login(spark, secure, options, topic):
    create(secure, topic)
    write(spark, options, topic)
    assert values(spark, options, topic) == [b"a", b"b"]
    without = {name: value for name, value in options.items() if "sasl" not in name}
    with pytest.raises(PySparkException, match="does not exist"):
        values(spark, without, topic)


def test_a_job_copies_a_topic_with_a_login(spark, secure, authority, options, password_file, topic):
    create(secure, topic)
    write(spark, options, topic)
    given = {"user": "alice", "password_file": password_file, "ca_file": authority.certificate}
    target = JobTarget(
        bootstrap=secure.bootstrap,
        topic=create(secure, f"{topic}-again"),
        job_id=f"job of {topic}",
        security=parse_security(given, environment={}),
    )
    replay(spark, topic, target)
    assert values(spark, options, f"{topic}-again") == [b"a", b"b"]


def test_a_plan_and_an_error_have_no_password(spark, secure, options, topic, tmp_path):
    create(secure, topic)
    frame = spark.read.format("millstream").options(**options, topic=topic).load()
    plan = frame._jdf.queryExecution().toString()
    assert PASSWORD not in plan
    wrong = tmp_path / "wrong"
    wrong.write_text("battery staple")
    with pytest.raises(PySparkException, match="login failed") as caught:
        values(spark, {**options, "sasl.passwordFile": str(wrong)}, topic)
    assert "battery" not in str(caught.value)


def test_an_option_that_would_show_a_password_is_refused_without_it(spark, options, topic):
    for name in ("kafka.sasl.jaas.config", "sasl.password"):
        with pytest.raises(PySparkException, match="put the password into a file") as caught:
            values(spark, {**options, name: PASSWORD}, topic)
        assert PASSWORD not in str(caught.value)


PIPELINE = """
[pipeline]
name = "copy"
bootstrap = "BOOTSTRAP"
trigger = "available-now"
checkpoint = "checkpoints"

[pipeline.security]
user = "alice"
ca_file = "ca.pem"

[sources.given]
topic = "SOURCE"
start = "earliest"

[steps.passed]
sql = "select key, value from given"

[targets.TARGET]
from = "passed"
topic = "TARGET"
"""


@pytest.mark.parametrize("how", ["file", "variable"])
def test_a_pipeline_logs_in_and_leaves_no_secret_behind(
    spark, secure, authority, options, password_file, topic, tmp_path, how
):
    """The log, the checkpoint, the event log and the outputs of a run are searched."""
    create(secure, topic)
    write(spark, options, topic)
    target = create(secure, f"{topic}-copy")
    home = tmp_path / "home"
    home.mkdir()
    text = PIPELINE.replace("BOOTSTRAP", secure.bootstrap).replace("SOURCE", topic)
    (home / "copy.toml").write_text(
        text.replace("TARGET", target.replace("-", "_"), 1).replace("TARGET", target)
    )
    (home / "ca.pem").write_text(Path(authority.certificate).read_text())
    (home / "events").mkdir()
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(home / "local")}
    login = ["--password-file", password_file]
    if how == "variable":
        environment["MILLSTREAM_PASSWORD"] = PASSWORD
        login = []
    done = subprocess.run(
        [
            *(MILLSTREAM, "pipeline", "run", str(home / "copy.toml"), "--once"),
            *("--master", "local[2]", "--log-level", "info"),
            *("--conf", "spark.eventLog.enabled=true"),
            *("--conf", f"spark.eventLog.dir=file:{home / 'events'}"),
            *login,
        ],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert values(spark, options, target) == [b"a", b"b"]
    assert "millstream" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    written = [path for path in home.rglob("*") if path.is_file()]
    assert any("offsets" in str(path) for path in written), "there is a checkpoint"
    assert any("events" in str(path.parent) for path in written), "there is an event log"
    secret = PASSWORD.encode()
    assert [str(path) for path in written if secret in path.read_bytes()] == []
