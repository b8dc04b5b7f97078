"""Parsing of the options of sources and sinks."""

from __future__ import annotations

import re

import pytest

from millstream.clients.kafka.login import KafkaLogin, LoginMechanism
from millstream.clients.kafka.security import KafkaSecurity
from millstream.clients.partition import Isolation
from millstream.clients.tls import ClientTls
from millstream.errors import InvalidConfig
from millstream.formats.typed_batch import OnBadRecord
from millstream.records.compression import Codec
from millstream.records.topic_partition import TopicPartition
from millstream.spark.options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    parse_read_options,
    parse_write_options,
    security_options,
)
from millstream.spark.read.positions import EARLIEST, LATEST, AtOffsets, AtTimes

NODE = {"bootstrap.servers": "localhost:9092"}
ORDERS = {**NODE, "topic": "orders"}


def read(is_stream=False, **options):
    return parse_read_options({**ORDERS, **options}, is_stream=is_stream)


def write(**options):
    return parse_write_options({**NODE, "topic": "orders", **options})


def test_a_batch_begins_at_the_start_and_a_stream_at_the_end():
    assert (read().starting, read().ending) == (EARLIEST, LATEST)
    assert read(is_stream=True).starting == LATEST


def test_names_are_taken_in_any_case():
    assert read(STARTINGoffsets="LATEST").starting == LATEST


def test_names_of_sparks_kafka_connector_are_understood():
    options = {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "orders,customers",
        "maxOffsetsPerTrigger": "100",
        "kafka.isolation.level": "read_uncommitted",
    }
    found = parse_read_options(options, is_stream=True)
    assert found.source.bootstrap == "localhost:9092"
    assert found.selection.names == ("orders", "customers")
    assert found.records_per_trigger_max == 100
    assert found.isolation is Isolation.READ_UNCOMMITTED


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("kafkaConsumer.pollTimeoutMs", "use timeoutMs"),
        ("minOffsetsPerTrigger", "use trigger"),
        ("kafka.ssl.keystore.location", "PEM files"),
        ("kafka.metric.reporters", "settings of Kafka's Java client have no effect here"),
    ],
)
def test_other_options_of_the_connector_are_refused_with_what_to_use_instead(name, instead):
    with pytest.raises(InvalidConfig, match=f"option '{name}' .* is not supported: .*{instead}"):
        read(**{name: "1"})


def test_options_of_the_connector_that_need_no_other_are_accepted():
    same = read(groupIdPrefix="x", **{"kafka.group.id": "g", "fetchOffset.numRetries": "3"})
    assert same == read()
    assert write(**{"kafka.acks": "all", "kafka.compression.type": "zstd"}).codec is Codec.ZSTD


def test_properties_of_a_table_in_the_catalog_are_no_options():
    properties = {"provider": "millstream", "owner": "ada", "option.topic": "orders"}
    assert read(**properties) == read()
    assert write(**properties).topic == "orders"


def test_partitions_can_be_assigned():
    found = parse_read_options({**NODE, "assign": '{"orders": [0, 2]}'}, is_stream=False)
    assert found.selection.assigned == (TopicPartition("orders", 0), TopicPartition("orders", 2))


@pytest.mark.parametrize(
    ("options", "position"),
    [
        ({"startingOffsets": "earliest"}, EARLIEST),
        (
            {"startingOffsets": '{"orders": {"0": 23, "1": -2}}'},
            AtOffsets({TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2}),
        ),
        ({"startingTimestamp": "1700000000000"}, AtTimes({}, default=1_700_000_000_000)),
        ({"startingTimestamp": "2023-11-14T22:13:20Z"}, AtTimes({}, default=1_700_000_000_000)),
        ({"startingTimestamp": "2023-11-14T22:13:20"}, AtTimes({}, default=1_700_000_000_000)),
        (
            {"startingTimestamp": "2023-11-15T00:13:20+02:00"},
            AtTimes({}, default=1_700_000_000_000),
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": 5}}'},
            AtTimes({TopicPartition("orders", 0): 5}),
        ),
    ],
)
def test_a_beginning_is_an_end_an_offset_or_a_time(options, position):
    assert read(**options).starting == position


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"bootstrapservers": "x"},
            "'bootstrapservers' does not exist, the options are .*bootstrap",
        ),
        ({"path": "/data"}, "must have either bootstrap.servers or path"),
        ({"topics": "a,b"}, r"exactly one of the options .* got \['topic', 'topics'\]"),
        ({"subscribe": "a"}, "topic is set twice, also as subscribe"),
        ({"topic": "a,,b"}, "topic must be distinct names .* got 'a,,b'"),
        ({"startingOffsets": "begin"}, "startingOffsets must be earliest, latest .* got 'begin'"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "numbers of at least -2"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "numbers of at least -2"),
        ({"startingOffsets": "[]"}, "by partition"),
        ({"startingTimestamp": "noon"}, "startingTimestamp must be milliseconds .* got 'noon'"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "numbers of at least 0"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "at most one of the options"),
        ({"isolation": "dirty"}, "isolation must be one of .*read_committed.*, got 'dirty'"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss must be one of .* got 'no'"),
        ({"maxRecordsPerTrigger": "0"}, "must be an integer of at least 1, got '0'"),
        ({"maxBytesPerTrigger": "1e6"}, "must be an integer of at least 1, got '1e6'"),
        ({"minPartitions": "-1"}, "must be an integer of at least 1, got '-1'"),
        ({"onBadRecord": "skip"}, "onBadRecord must be one of .* got 'skip'"),
        ({"onBadRecord": "deadLetter"}, "deadLetterTopic must be set if, and only if"),
        ({"deadLetterTopic": "dead"}, "deadLetterTopic must be set if, and only if"),
        ({"valueFormat": "xml"}, "valueFormat must be one of .* got 'xml'"),
    ],
)
def test_what_is_not_allowed_is_named(options, says):
    with pytest.raises(InvalidConfig, match=says):
        read(**options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name):
    with pytest.raises(InvalidConfig, match=f"option {name} is for batches"):
        read(is_stream=True, **{name: "5"})


@pytest.mark.parametrize("pattern", ["orders(", "*"])
def test_a_pattern_has_to_be_one(pattern):
    with pytest.raises(InvalidConfig, match="must be a regular expression"):
        parse_read_options({**NODE, "topicPattern": pattern}, is_stream=False)


@pytest.mark.parametrize("assign", ["orders", "{}", '{"a": 0}', '{"a": [-1]}', '{"a": [true]}'])
def test_an_assignment_has_to_name_partitions(assign):
    with pytest.raises(InvalidConfig, match="must be partitions by topic"):
        parse_read_options({**NODE, "assign": assign}, is_stream=False)


def test_dead_letters_have_a_topic():
    value = read(onBadRecord="deadLetter", deadLetterTopic="dead").value
    assert (value.on_bad, value.dead_letter_topic) == (OnBadRecord.DEAD_LETTER, "dead")


def test_a_sink_goes_to_a_node():
    with pytest.raises(InvalidConfig, match=r"must have bootstrap\.servers"):
        parse_write_options({"path": "/data", "topic": "orders"})


def test_a_write_without_a_name_gets_one_of_its_own():
    assert write().job_id != write().job_id
    assert write(jobId="nightly").job_id == "nightly"


def test_writes_of_a_job_can_be_numbered():
    assert write(jobId="q", jobSequence="0").job_sequence == 0
    with pytest.raises(InvalidConfig, match="jobSequence requires jobId"):
        write(jobSequence="1")
    with pytest.raises(
        InvalidConfig, match="jobSequence must be an integer of at least 0, got '-1'"
    ):
        write(jobId="q", jobSequence="-1")


def test_a_sink_packs_as_it_is_told():
    assert write().codec is Codec.NONE
    assert write(compression="ZSTD").codec is Codec.ZSTD
    with pytest.raises(InvalidConfig, match=r"compression must be one of .* got 'rar'"):
        write(compression="rar")


def test_what_spark_itself_takes_from_a_writer_is_passed_over():
    assert write(checkpointLocation="/checkpoints").topic == "orders"


@pytest.mark.parametrize("table", [READ_OPTIONS, WRITE_OPTIONS])
def test_no_name_means_two_things(table):
    names = [name.lower() for name in table]
    names += [alias.lower() for option in table.values() for alias in option.aliases]
    assert len(set(names)) == len(names)


def test_a_node_is_connected_to_in_clear_text_unless_told():
    assert read().source.security == KafkaSecurity()


def test_a_user_or_certificates_are_enough_to_use_tls():
    assert read(**{"ssl.ca.location": "a"}).source.security.tls == ClientTls(ca_file="a")
    options = {"sasl.username": "a", "sasl.passwordFile": "b"}
    assert read(**options).source.security == KafkaSecurity(
        tls=ClientTls(), login=KafkaLogin(user="a", password_file="b")
    )


def test_what_options_do_not_say_is_taken_from_the_environment(monkeypatch):
    monkeypatch.setenv("MILLSTREAM_USER", "alice")
    monkeypatch.setenv("MILLSTREAM_PASSWORD_FILE", "password")
    login = read().source.security.login
    assert login == KafkaLogin(user="alice", password_file="password")
    assert read(**{"security.protocol": "PLAINTEXT"}).source.security == KafkaSecurity()
    in_place = parse_read_options({"path": "data", "topic": "t"}, is_stream=False)
    assert in_place.source.security == KafkaSecurity(), "files are read without a node"


def test_options_of_a_security_make_the_same_one():
    options = {
        "sasl.username": "a",
        "sasl.passwordFile": "/b",
        "sasl.mechanism": "PLAIN",
        "ssl.ca.location": "/c",
        "ssl.certificate.location": "/d",
        "ssl.key.location": "/e",
    }
    security = read(**options).source.security
    assert security_options(security) == {**options, "security.protocol": "SASL_SSL"}
    assert read(**security_options(security)).source.security == security


def test_tls_and_a_login_are_options_with_names_of_kafkas_clients():
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.ca.location": "ca.pem",
        "kafka.sasl.mechanism": "scram-sha-512",
        "kafka.sasl.username": "alice",
        "sasl.passwordFile": "password",
    }
    source = read(**options).source
    assert source.security.tls == ClientTls(ca_file="ca.pem")
    assert source.security.login == KafkaLogin(
        user="alice", password_file="password", mechanism=LoginMechanism.SCRAM_SHA_512
    )
    assert write(**options).source == source


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol must be one of"),
        (
            {"security.protocol": "PLAINTEXT", "ssl.ca.location": "a"},
            "ssl.ca.location requires security.protocol SSL or SASL_SSL, got PLAINTEXT",
        ),
        (
            {"security.protocol": "SSL", "sasl.username": "a"},
            "sasl.username requires security.protocol SASL_SSL, got SSL",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.username": "a", "sasl.mechanism": "GSSAPI"},
            "sasl.mechanism must be one of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, got 'GSSAPI'",
        ),
        ({"security.protocol": "SASL_SSL"}, "sasl.username must be set"),
        (
            {"security.protocol": "SASL_SSL", "sasl.username": "a"},
            "sasl.passwordFile must be set",
        ),
        (
            {"security.protocol": "SSL", "ssl.key.location": "a"},
            "ssl.certificate.location must be set together with ssl.key.location",
        ),
        ({"sasl.password": "secret"}, "option 'sasl.password' is not supported, because Spark"),
        ({"kafka.sasl.jaas.config": "secret"}, "name that with sasl.passwordFile"),
    ],
)
def test_options_of_a_login_that_do_not_fit_together_are_named(options, message):
    with pytest.raises(InvalidConfig, match=re.escape(message)):
        read(**options)
