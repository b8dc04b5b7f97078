"""Deleted records are distinguished from lost ones: in files, and over the Kafka protocol."""

from __future__ import annotations

import millstream

from .nodes import TOPIC, Stage

COUNT = 300


def delete(broker, **what: object) -> None:
    with millstream.Client(broker.url) as client:
        client.delete_records(TOPIC, **what)  # type: ignore[arg-type]


def test_what_was_deleted_before_an_offset_is_before_the_start(stage: Stage) -> None:
    with stage.node() as broker:
        stage.create(broker)
        stage.fill(broker, COUNT)
        delete(broker, before=100, partition=0)
        for found in (stage.verify(broker), stage.verify(None)):
            assert found.exit_code == 0
            assert found.outcomes == {"before_start": 100, "found": COUNT - 100}


def test_what_retention_took_is_before_the_start(stage: Stage) -> None:
    with stage.node() as broker:
        stage.create(broker, retention_records=50)
        stage.fill(broker, COUNT)
    stage.clean()
    found = stage.verify(None)
    assert found.exit_code == 0
    assert found.outcomes["before_start"] > 100
    assert sum(found.outcomes.values()) == COUNT
    with stage.node() as broker:
        assert stage.verify(broker).outcomes == found.outcomes


def test_what_compaction_took_has_a_later_record_of_its_key(stage: Stage) -> None:
    with stage.node() as broker:
        stage.create(broker, cleanup="compact")
        stage.fill(broker, COUNT, keys=20)
    stage.clean()
    found = stage.verify(None)
    assert found.exit_code == 0
    assert found.outcomes["compacted"] > COUNT // 2
    assert sum(found.outcomes.values()) == COUNT
    with stage.node() as broker:
        assert stage.verify(broker).outcomes == found.outcomes


def test_tombstones_that_compaction_kept_and_dropped_are_told(stage: Stage) -> None:
    with stage.node() as broker:
        stage.create(broker, cleanup="compact", configs={"delete.retention.ms": "0"})
        stage.fill(broker, 50, keys=50)
        with millstream.Client(broker.url, acknowledgements=stage.acknowledged) as client:
            for number in range(50):
                client.append(TOPIC, None, key=f"key-{number}")
        stage.fill(broker, 20, keys=5)
    for _ in range(3):
        stage.clean()
    found = stage.verify(None)
    assert found.exit_code == 0, found.report["misses"]
    assert found.outcomes["compacted"] >= 50
    with stage.node() as broker:
        assert stage.verify(broker).outcomes == found.outcomes


def test_what_was_deleted_by_key_is_known_from_the_files_as_long_as_the_rule_is(
    stage: Stage,
) -> None:
    with stage.node() as broker:
        stage.create(broker)
        stage.fill(broker, COUNT, keys=10)
        delete(broker, key="key-3")
        found = stage.verify(None)
        assert found.exit_code == 0
        assert found.outcomes == {"deleted": COUNT // 10, "found": COUNT - COUNT // 10}
        assert stage.verify(broker).outcomes["lost"] == COUNT // 10, "no client is told of rules"
        found = stage.verify(broker, "--deleted", TOPIC)
        assert found.exit_code == 0
        assert found.outcomes == {"deleted": COUNT // 10, "found": COUNT - COUNT // 10}
    stage.clean()
    assert stage.verify(None).outcomes["lost"] > 0, "nothing is left that tells it from loss"
    assert stage.verify(None, "--deleted", TOPIC).exit_code == 0


def test_an_aborted_transaction_is_told_and_a_committed_one_is_found(stage: Stage) -> None:
    with stage.node() as broker:
        stage.create(broker)
        producer = stage.producer(broker, **{"transactional.id": "writer"})
        producer.init_transactions(30)
        for number in range(4):
            held = stage.acknowledged.transaction()
            note = held.on_delivery if number % 2 else stage.acknowledged.on_delivery
            producer.begin_transaction()
            for _ in range(10):
                producer.produce(TOPIC, f"{number}", on_delivery=note)
            producer.flush(30)
            if number < 2:
                producer.commit_transaction(30)
                held.committed()
            else:
                producer.abort_transaction(30)
        for found in (stage.verify(broker), stage.verify(None)):
            assert found.exit_code == 0
            assert found.outcomes == {"found": 20, "aborted": 10}


def test_a_topic_that_was_made_anew_is_another_one(stage: Stage) -> None:
    with stage.node() as broker:
        stage.create(broker)
        stage.fill(broker, 20)
        broker.run(broker.server.broker.topics.delete(TOPIC))
        stage.create(broker)
        stage.fill(broker, 5)
        for found in (stage.verify(broker), stage.verify(None)):
            assert found.exit_code == 0
            assert found.outcomes == {"made_anew": 20, "found": 5}
    assert stage.verify(None).outcomes == {"made_anew": 20, "found": 5}
