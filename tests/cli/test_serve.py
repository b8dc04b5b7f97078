"""`millstream serve`: output, startup errors, shutdown, and data after a restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import millstream
from millstream.cli.main import main
from millstream.observe.metrics.node_metrics import (
    CLUSTER_SECTIONS,
    NATIVE_SECTIONS,
    SECTIONS,
)
from millstream.observe.metrics.queues import QUEUES
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.cli.calls import commit, committed, create_topic, fetch, produce, topic_id
from tests.cli.nodes import MILLSTREAM, PATIENCE, Node
from tests.servers.kafka.client import RawClient


def refused(*options: str) -> Result:
    """Return the error output of a node that does not start."""
    return CliRunner().invoke(main, ["serve", *options])


def is_one_line(text: str) -> bool:
    return text.startswith("Error: ") and text.count("\n") == 1 and text.endswith("\n")


# Startup.


def test_a_node_says_where_its_servers_are_and_that_it_is_ready(tmp_path: Path):
    with Node(tmp_path) as node:
        kafka, http, ready = node.lines
        assert kafka.startswith("kafka 127.0.0.1:")
        assert http.startswith("http http://127.0.0.1:")
        assert ready == "ready"
        assert not node.bootstrap.endswith(":0")
        with RawClient(node.bootstrap) as client:
            create_topic(client, "orders")
            assert produce(client, "orders", b"first") == 0
        assert node.stop() == 0
        assert f'"version":"{millstream.__version__}"' in node.errors
        assert "uvloop" in node.errors
        assert str(tmp_path) in node.errors


def test_two_nodes_pick_ports_of_their_own(tmp_path: Path):
    with Node(tmp_path / "a") as one, Node(tmp_path / "b") as other:
        assert one.bootstrap != other.bootstrap
        assert one.url != other.url


def test_a_second_node_on_the_same_data_is_refused_in_one_line(tmp_path: Path):
    with Node(tmp_path):
        second = subprocess.run(
            [MILLSTREAM, "serve", "--data", str(tmp_path), "--kafka", "127.0.0.1:0",
             "--http", "127.0.0.1:0", "--log-level", "error", "--log-format", "pretty"],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert second.returncode == 1
    assert second.stdout == ""
    assert is_one_line(second.stderr)
    assert str(tmp_path) in second.stderr


@pytest.mark.parametrize("server", ["kafka", "http"])
def test_a_port_that_is_taken_is_named_in_one_line(tmp_path: Path, server: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        ports = {"kafka": "127.0.0.1:0", "http": "127.0.0.1:0", server: where}
        result = subprocess.run(
            [MILLSTREAM, "serve", "--data", str(tmp_path), "--log-level", "error",
             "--log-format", "pretty",
             *(part for name, place in ports.items() for part in (f"--{name}", place))],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert result.returncode == 1
    assert is_one_line(result.stderr), result.stderr
    assert f"cannot listen on {where} ({server}): Address already in use" in result.stderr


@pytest.mark.parametrize("server", ["--kafka", "--http"])
def test_others_are_not_let_in_by_accident(tmp_path: Path, server: str):
    result = refused("--data", str(tmp_path), server, "0.0.0.0:0")
    assert result.exit_code == 1
    assert "0.0.0.0:0, which other machines can reach" in result.stderr
    assert "--insecure" in result.stderr
    assert not list(tmp_path.iterdir()), "nothing was touched"


def test_a_node_for_others_has_to_know_by_which_address_they_reach_it(tmp_path: Path):
    options = ("--kafka", "0.0.0.0:0", "--http", "127.0.0.1:0", "--insecure", "--log-format=pretty")
    result = refused("--data", str(tmp_path), *options)
    assert result.exit_code == 1
    assert "--advertise" in result.stderr


def test_a_node_for_others_tells_them_the_advertised_address(tmp_path: Path):
    options = ("--kafka", "0.0.0.0:0", "--insecure", "--advertise", "node.example:9999")
    with Node(tmp_path, *options) as node:
        port = node.bootstrap.rpartition(":")[2]
        with RawClient(f"127.0.0.1:{port}") as client:
            broker = client.call(MetadataRequest(topics=())).brokers[0]
        assert (broker.host, broker.port) == ("node.example", 9999)
        assert node.stop() == 0


KEYS_OF = {"--kafka": "kafka.listen", "--http": "http.listen", "--advertise": "kafka.advertise"}


@pytest.mark.parametrize("option", KEYS_OF)
@pytest.mark.parametrize("value", ["9092", "localhost", "localhost:", "localhost:70000"])
def test_what_is_no_host_and_port_is_refused_with_what_is_needed(
    tmp_path: Path, option: str, value: str
):
    result = refused("--data", str(tmp_path), option, value)
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: {KEYS_OF[option]} must be HOST:PORT with a port from 0 to 65535"
        f"{', or none' * (option == '--advertise')}, got '{value}' ({option})\n"
    )


def test_partitions_that_cannot_be_are_refused_with_what_is_allowed(tmp_path: Path):
    result = refused("--data", str(tmp_path), "--partitions", "0")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: topics.partitions must be between 1 and 100000, got 0 (--partitions)\n"
    )


def test_data_that_cannot_be_a_directory_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("not a directory")
    options = ("--kafka", "127.0.0.1:0", "--log-format", "pretty", "--log-level", "error")
    result = refused("--data", str(tmp_path / "file"), *options)
    assert result.exit_code == 1
    assert is_one_line(result.stderr), result.stderr


def test_a_durability_that_is_none_is_wrong_usage(tmp_path: Path):
    result = refused("--data", str(tmp_path), "--durability", "maybe")
    assert result.exit_code == 2


def test_settings_come_from_the_environment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLSTREAM_PARTITIONS", "3")
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        create_topic(client, "t")
        answer = client.call(MetadataRequest(topics=(MetadataRequestTopic(name="t"),)))
        assert len(answer.topics[0].partitions) == 3


def test_topics_are_not_made_by_themselves_where_that_is_said(tmp_path: Path):
    with Node(tmp_path, "--no-auto-create") as node, RawClient(node.bootstrap) as client:
        wanted = MetadataRequestTopic(name="t")
        request = MetadataRequest(topics=(wanted,), allow_auto_topic_creation=True)
        assert client.call(request).topics[0].error_code == 3


def test_what_is_written_belongs_to_its_owner_alone(tmp_path: Path):
    with Node(tmp_path / "data") as node, RawClient(node.bootstrap) as client:
        create_topic(client, "t")
        produce(client, "t", b"secret")
        paths = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
        assert any(path.suffix == ".log" for path in paths)
        assert not [path for path in paths if os.stat(path).st_mode & 0o077]


# Health and metrics.


def test_health_says_that_all_is_well(tmp_path: Path):
    with Node(tmp_path) as node:
        for what in ("live", "startup", "ready"):
            assert node.get(f"/health/{what}")[0] == 200
        assert node.get_json("/health/ready") == {"status": "ready", "problems": []}
        assert node.get("/nothing/here")[0] == 404


def test_a_scrape_holds_every_metric_that_is_declared(tmp_path: Path):
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        create_topic(client, "t")
        produce(client, "t", b"x")
        commit(client, "g", "t", 0)
        found = node.metrics()
        names = {name for name, *_ in found}
        for section in SECTIONS:
            for metric in section.metrics:
                is_told = {name for name, _, _ in metric.parts()} <= names
                is_there = section not in (QUEUES, *CLUSTER_SECTIONS, *NATIVE_SECTIONS)
                assert is_told == is_there, f"{metric.name}: no queue, cluster or native server"
        assert "process_open_fds" in names
        assert "python_info" in names
        assert found["millstream_group_lag_records", "g", "t", "0"] == 1
        assert found["millstream_kafka_requests_total", "Produce"] == 1
        assert found["millstream_kafka_connections",] == 1


# Shutdown, and data after a restart.


def test_sigquit_writes_all_stacks_commits_seals_and_ends_with_131(tmp_path: Path):
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        create_topic(client, "t")
        for _ in range(10):
            produce(client, "t", b"x" * 100)
        assert node.stop(signal.SIGQUIT) == 131
        stacks = node.errors
    assert "most recent call first" in stacks, "of threads"
    assert "serve_until_signalled" in stacks, "of tasks"
    assert list((tmp_path / "topics/t/0").glob("*.seal"))
    assert not list((tmp_path / "topics/t/0").glob("checkpoint"))
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        assert fetch(client, "t")
        assert node.metrics()["millstream_log_recovered_bytes", "t", "0"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_node_that_was_stopped_left_nothing_to_scan(tmp_path: Path, number: int):
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        create_topic(client, "t")
        for _ in range(10):
            produce(client, "t", b"x" * 100)
        assert node.stop(number) == 0
    checked = CliRunner().invoke(main, ["segments", "verify", "--data", str(tmp_path)])
    assert checked.exit_code == 0, checked.output
    assert list((tmp_path / "topics/t/0").glob("*.seal"))
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        assert fetch(client, "t")
        assert node.metrics()["millstream_log_recovered_bytes", "t", "0"] == 0
        assert "recovered" not in node.errors


def test_a_node_that_was_killed_has_scanned_what_was_not_sealed(tmp_path: Path):
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        create_topic(client, "t")
        produce(client, "t", b"x" * 100)
        assert node.stop(signal.SIGKILL) == -signal.SIGKILL
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        assert fetch(client, "t")
        assert node.metrics()["millstream_log_recovered_bytes", "t", "0"] > 100


def test_everything_that_was_acknowledged_survives_a_restart(tmp_path: Path):
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        create_topic(client, "t")
        produce(client, "t", b"first", b"second")
        commit(client, "g", "t", 1)
        known_id, records = topic_id(client, "t"), fetch(client, "t")
        assert node.stop() == 0
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        assert topic_id(client, "t") == known_id
        assert fetch(client, "t") == records
        assert committed(client, "g", "t") == 1
        assert produce(client, "t", b"third") == 2


def test_what_an_embedded_store_wrote_is_served(tmp_path: Path):
    with millstream.open(tmp_path) as store:
        store.log("orders").append(b"first")
        store.log("orders", 2).append(b"elsewhere")
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        request = MetadataRequest(topics=(MetadataRequestTopic(name="orders"),))
        assert len(client.call(request).topics[0].partitions) == 3
        assert b"first" in fetch(client, "orders")
        assert produce(client, "orders", b"second") == 1
        assert node.stop() == 0
    with millstream.open(tmp_path) as store:
        assert [record.value for record in store.log("orders").read()] == [b"first", b"second"]


def test_clients_that_are_connected_do_not_hold_up_the_end(tmp_path: Path):
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        create_topic(client, "t")
        assert node.stop() == 0
        assert client.is_closed_by_peer()
