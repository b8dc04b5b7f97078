"""Topics whose values are checked: what does not fit is refused by every server, and named."""

from __future__ import annotations

import io
import json
import logging

import fastavro
import pytest
from confluent_kafka import KafkaError, Producer

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.record import Record
from tests.servers.http.calls import ask
from tests.servers.kafka.client import NOW_MS, batch_of
from tests.servers.kafka.conftest import make_topic
from tests.servers.kafka.handlers.test_produce import produce, values_in

DDL = "id BIGINT NOT NULL, name STRING"
PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


def checked(client, kind="json", schema=DDL, **configs):
    return make_topic(
        client,
        millstream_value_format=kind,
        millstream_value_schema=schema,
        millstream_value_check="schema",
        **configs,
    )


def avro(value):
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(PERSON), value)
    return target.getvalue()


GOOD = {"json": b'{"id": 1, "name": "Ada"}', "avro": avro({"id": 1, "name": "Ada"})}
BAD = {"json": b'{"id": "one"}', "avro": GOOD["avro"][:-1]}
SCHEMAS = {"json": DDL, "avro": json.dumps(PERSON)}


@pytest.mark.parametrize("kind", ["json", "avro"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_every_value_that_does_not_fit_is_named_and_nothing_is_stored(client, kind, codec):
    topic = checked(client, kind, SCHEMAS[kind])
    good, bad = GOOD[kind], BAD[kind]
    refused = produce(client, topic, batch_of(good, bad, None, good, bad, codec=codec))
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [1, 4]
    for error in refused.record_errors:
        said = f"record {error.batch_index} does not fit the topic's schema: "
        assert error.batch_index_error_message.startswith(said)
    assert refused.error_message.startswith("record 1 does not fit the topic's schema: ")
    assert refused.error_message.endswith("; nor do records 4")
    assert values_in(client, topic) == []
    assert produce(client, topic, batch_of(good, None, codec=codec)).error_code == 0
    assert values_in(client, topic) == [good, None]


def test_a_large_batch_is_checked_whole(client):
    topic = checked(client)
    values = [GOOD["json"]] * 3_000
    assert produce(client, topic, batch_of(*values)).error_code == 0
    refused = produce(client, topic, batch_of(*values[:-1], b'{"id": null}'))
    assert [error.batch_index for error in refused.record_errors] == [2_999]
    assert len(values_in(client, topic)) > 0


def test_small_batches_behind_a_large_one_keep_their_order(client):
    topic = checked(client)
    large = [json.dumps({"id": number}).encode() for number in range(2_000)]
    for batch in (batch_of(*large), batch_of(b'{"id": 2000}'), batch_of(b'{"id": 2001}')):
        assert produce(client, topic, batch).error_code == 0
    assert values_in(client, topic, offset=2_000) == [b'{"id": 2000}', b'{"id": 2001}']


def test_of_a_compacted_topic_keys_and_values_are_checked(client):
    topic = checked(client, cleanup_policy="compact")
    keyless = produce(client, topic, batch_of(GOOD["json"]))
    assert "has no key" in keyless.error_message
    refused = produce(client, topic, batch_of(BAD["json"], key=b"k"))
    assert "does not fit" in refused.error_message
    assert produce(client, topic, batch_of(GOOD["json"], key=b"k")).error_code == 0
    assert produce(client, topic, batch_of(None, key=b"k")).error_code == 0


def test_a_topic_that_does_not_ask_for_it_is_not_checked(client):
    topic = make_topic(client, millstream_value_format="json", millstream_value_schema=DDL)
    assert produce(client, topic, batch_of(BAD["json"])).error_code == 0


def test_over_http_the_record_is_named_by_its_position_in_the_request(client, broker):
    topic = checked(client)
    records = [{"value": {"id": number}, "key": str(number)} for number in range(4)]
    records[2]["value"] = {"name": "nobody"}
    answer = ask(broker.url, "POST", f"/v1/topics/{topic}/records", _body(records))
    assert (answer.status, answer.code) == (422, "bad_record")
    assert "record 2 does not fit the topic's schema: field id" in answer.message
    assert answer.json["error"]["detail"] == {"records": [2]}
    assert ask(broker.url, "POST", f"/v1/topics/{topic}/records", _body(records[:2])).status == 201


def _body(records):
    return json.dumps({"records": records}).encode()


def test_a_producer_is_told_which_message_was_refused(client, broker):
    topic = checked(client)
    errors = {}

    def note(error, message):
        errors[message.value()] = None if error is None else error.code()

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 1, "enable.idempotence": True},
        logger=logging.getLogger("quiet"),
    )
    producer.produce(topic, BAD["json"], partition=0, on_delivery=note)
    assert producer.flush(60) == 0
    producer.produce(topic, GOOD["json"], partition=0, on_delivery=note)
    assert producer.flush(60) == 0
    assert errors[BAD["json"]] in (KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD)
    assert errors[GOOD["json"]] is None
    assert values_in(client, topic) == [GOOD["json"]]


def test_a_schema_that_cannot_be_used_refuses_all_values_and_is_named(client):
    topic = checked(client, schema="id GEOMETRY")
    refused = produce(client, topic, batch_of(GOOD["json"]))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert "GEOMETRY" in refused.error_message.upper()
    assert values_in(client, topic) == []


def test_records_that_cannot_be_decoded_are_refused(client):
    topic = checked(client)
    batch = bytearray(build_batch([Record(GOOD["json"])], now_ms=NOW_MS))
    broken = _with_body(bytes(batch), b"\xff" * (len(batch) - 61))
    refused = produce(client, topic, broken)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert "cannot read the records" in refused.error_message


def _with_body(batch, body):
    from millstream.records.batch import decode_header, seal  # noqa: PLC0415

    return bytes(seal(decode_header(batch), body))
