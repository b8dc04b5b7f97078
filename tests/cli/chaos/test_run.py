"""`millstream chaos run` against a real node: what it reports, and how it ends."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.producer import TransactionalProducer
from millstream.clients.partition import Isolation
from millstream.records.build import build_batch
from millstream.records.iterate import read_all
from millstream.records.record import Record
from millstream.records.topic_partition import TopicPartition
from millstream.testing.broker import RunningBroker
from tests.cli.commands import run, started, told
from tests.cli.nodes import PATIENCE, wait_until

SHORT = ("chaos", "run", "--rate", 200, "--duration", 1, "--progress", 0)


@pytest.fixture(autouse=True)
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def values_of(bootstrap: str, topic: str) -> list[bytes]:
    """Return the values of the only partition of a topic."""
    partition = TopicPartition(topic, 0)
    isolation = Isolation.READ_UNCOMMITTED
    with KafkaClient(bootstrap) as client:
        start, end = client.bounds([partition], isolation=isolation)[partition]
        return [
            record.value
            for chunk in client.chunks(partition, start, end, isolation=isolation)
            for record in read_all(chunk.data)
            if record.value is not None
        ]


def write(bootstrap: str, topic: str, *values: bytes) -> None:
    """Append records to the only partition of a topic, as another client."""
    with (
        KafkaClient(bootstrap) as client,
        TransactionalProducer(client, None, timeout_ms=60_000) as producer,
    ):
        batch = build_batch(
            [Record(value) for value in values],
            now_ms=0,
            producer_id=producer.identity.producer_id,
            producer_epoch=producer.identity.producer_epoch,
            base_sequence=0,
        )
        producer.send(topic, 0, batch, len(values))
        producer.flush()


def topics(node: RunningBroker) -> list[str]:
    return [row["name"] for row in told("topic", "list", server=node.url)["topics"]]


def test_a_run_against_a_sound_node_finds_nothing_and_leaves_nothing(
    node: RunningBroker, tmp_path: Path
):
    before = topics(node)
    report = told(*SHORT, server=node.url)
    assert report["acknowledged"] == report["read"] == report["sent"] > 0
    names = ("unknown", "lost", "gone", "deleted", "doubled", "out_of_order", "unexpected", "gaps")
    assert {name: report[name] for name in names} == dict.fromkeys(names, 0)
    assert report["problems"] == []
    assert topics(node) == before
    assert list(tmp_path.glob("*.jsonl")) == []


def test_the_report_is_a_table_and_progress_is_lines_without_a_terminal(node: RunningBroker):
    result = run(*SHORT[:-1], 0.2, server=node.url)
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["WHAT", "COUNT"]
    assert [row.split()[0] for row in rows][:2] == ["sent", "acknowledged"]
    lines = [line for line in result.stderr.splitlines() if " s: " in line]
    assert len(lines) >= 2
    assert "acknowledged" in lines[0]
    assert result.stderr.splitlines()[-1] == "nothing is lost, doubled or out of order"


def test_a_given_topic_and_file_are_kept_and_records_of_others_are_passed_over(
    node: RunningBroker, tmp_path: Path
):
    told("topic", "create", "mine", "--partitions", 1, server=node.url)
    write(node.bootstrap, "mine", b"from another client", b"chaos 123456 0 7 ..")
    file = tmp_path / "acknowledged.jsonl"
    report = told(*SHORT, "--topic", "mine", "--ledger", file, server=node.url)
    assert report["problems"] == []
    assert report["topic"] == "mine"
    assert len(values_of(node.bootstrap, "mine")) == report["acknowledged"] + 2
    verified = run("verify", "--bootstrap", node.bootstrap, "--acknowledged", file)
    assert verified.exit_code == 0, verified.output
    assert f"{report['acknowledged']} acknowledged: 0 lost, 0 different" in verified.stderr


class Disturbance:
    """A run on a topic with one partition, during which something is done with its records."""

    def __init__(self, node: RunningBroker) -> None:
        self.node = node
        told("topic", "create", "watched", "--partitions", 1, server=node.url)

    def report(self, disturb: Any) -> tuple[int, Any]:
        """Return exit status and report of a run; `disturb` is called when records are there."""
        failures = []

        def work() -> None:
            try:
                wait_until(lambda: len(values_of(self.node.bootstrap, "watched")) > 10)
                disturb(values_of(self.node.bootstrap, "watched"))
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=work)
        thread.start()
        result = run(
            "chaos", "run", "--rate", 100, "--duration", 4, "--progress", 0, "--topic", "watched",
            "--timeout", 2, "--settle", 1, "--json",
            server=self.node.url,
        )  # fmt: skip
        thread.join()
        assert not failures
        return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def disturbance(node: RunningBroker) -> Iterator[Disturbance]:
    yield Disturbance(node)
    run("topic", "delete", "watched", "--yes", server=node.url)


def test_a_record_that_is_stored_twice_ends_a_run_with_1(
    disturbance: Disturbance, node: RunningBroker
):
    status, report = disturbance.report(
        lambda values: write(node.bootstrap, "watched", values[3], values[5])
    )
    assert (status, report["doubled"]) == (1, 2)
    assert report["problems"] == ["2 records were read more than once"]


def test_a_record_that_nobody_sent_ends_a_run_with_1(disturbance: Disturbance, node: RunningBroker):
    def forge(values: list[bytes]) -> None:
        run_id = values[0].split()[1].decode()
        write(node.bootstrap, "watched", f"chaos {run_id} 0 1000000 ".encode())

    status, report = disturbance.report(forge)
    assert (status, report["unexpected"]) == (1, 1)


def test_records_that_are_not_stored_any_more_end_a_run_with_1(
    disturbance: Disturbance, node: RunningBroker
):
    def lose(_: list[bytes]) -> None:
        run("topic", "delete", "watched", "--yes", server=node.url)

    status, report = disturbance.report(lose)
    assert status == 1
    assert report["acknowledged"] > 10
    assert report["gone"] == report["acknowledged"]
    assert any("are not stored" in problem for problem in report["problems"])
    assert report["errors"]


def test_ctrl_c_ends_a_run_with_its_report(node: RunningBroker):
    with started(
        "chaos", "run", "--duration", 600, "--progress", 0.1, "--json", "--server", node.url
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b" s: " in line and b" 0 acknowledged" not in line:
                break
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    report = json.loads(output)
    assert report["seconds"] < 600
    assert 0 < report["acknowledged"] == report["read"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "0"], "0 is not in the range"),
        (["--duration", "0"], "0.0 is not in the range"),
        (["--size", "10"], "10 is not in the range"),
        (["--topic", "t", "--replicas", "2"], "--replicas is for a new topic"),
        (["--ledger", "taken"], "must be a new file, taken exists"),
        (["--server", "ftp://x"], "must be http://HOST:PORT"),
    ],
)
def test_bad_usage_ends_with_2(options: list[str], message: str, tmp_path: Path):
    (tmp_path / "taken").write_text("")
    result = run("chaos", "run", *options)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")


def test_a_node_that_does_not_answer_ends_with_1_and_one_line():
    result = run("chaos", "run", "--server", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no node answers at http://127.0.0.1:9")


def test_a_topic_that_does_not_exist_is_named(node: RunningBroker):
    result = run("chaos", "run", "--topic", "nothing", server=node.url)
    assert result.exit_code == 1
    assert "nothing" in result.stderr
