"""A node starts whole or not at all, and stops without leaving anyone waiting."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from millstream.broker.broker import Broker
from millstream.config.schema import BrokerConfig, Endpoint, KafkaConfig, NodeConfig, is_unspecified
from millstream.errors import InvalidConfig, StoreLocked
from millstream.node import Node, advertised
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from millstream.testing.broker import RunningBroker, running_broker
from tests.cli.calls import create_topic, produce
from tests.cli.nodes import wait_until
from tests.in_loop import in_loop
from tests.servers.kafka.client import RawClient

ANY = Endpoint("127.0.0.1", 0)
EAGER = BrokerConfig(group_initial_rebalance_delay_ms=0)


def config_of(data: Path, **settings: object) -> NodeConfig:
    return NodeConfig(data=str(data), **{"kafka": ANY, "http": ANY, **settings})


def join(client: RawClient, group: str, member_id: str = "") -> None:
    """Ask to be in a group; the answer comes when all others have asked again."""
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )
    client.send(request, 3)


def waiting_fetch(client: RawClient, topic: str) -> None:
    part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1024)
    request = FetchRequest(
        max_wait_ms=250_000,
        min_bytes=1,
        max_bytes=1024,
        session_epoch=-1,
        topics=(FetchRequestTopic(topic=topic, partitions=(part,)),),
    )
    client.send(request, 12)


def stop(broker: RunningBroker) -> float:
    """Stop a node that is about to be stopped anyway; returns how many seconds that took."""
    began = time.monotonic()
    asyncio.run_coroutine_threadsafe(broker.server.stop(), broker._loop).result()
    return time.monotonic() - began


def health(broker: RunningBroker, what: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"{broker.url}/health/{what}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


# Starting.


def test_a_node_that_cannot_listen_gives_its_data_back(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in ("kafka", "http"):
            config = config_of(tmp_path, **{name: Endpoint("127.0.0.1", port)})
            with pytest.raises(
                InvalidConfig, match=rf"cannot listen on 127.0.0.1:{port} \({name}\)"
            ):
                RunningBroker(config).start()
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "t")


def test_a_host_that_is_not_known_is_named(tmp_path: Path):
    config = config_of(tmp_path, kafka=Endpoint("no.such.host.invalid", 0), is_insecure=True)
    with pytest.raises(InvalidConfig, match=r"cannot listen on no\.such\.host\.invalid:0"):
        RunningBroker(config).start()


def test_data_has_one_node_at_a_time(tmp_path: Path):
    with (
        running_broker(tmp_path),
        pytest.raises(StoreLocked),
        running_broker(tmp_path),
    ):
        pass


@in_loop
async def test_a_node_can_be_used_as_a_context(tmp_path: Path):
    async with Node(config_of(tmp_path)) as server:
        assert server.kafka.port != 0
        assert server.health().is_ready
    assert not server.health().is_ready


def test_ipv6_is_spoken_where_the_machine_has_it(tmp_path: Path):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 here")
    node = RunningBroker(config_of(tmp_path, kafka=Endpoint("::1", 0), http=Endpoint("::1", 0)))
    node.start()
    try:
        assert node.bootstrap.startswith("[::1]:")
        assert health(node, "ready")[0] == 200
        with RawClient(node.bootstrap.replace("[::1]", "::1")) as client:
            create_topic(client, "t")
    finally:
        node.stop()


# What clients are told.


def test_clients_are_told_the_address_that_the_node_listens_on():
    assert advertised(NodeConfig(kafka=ANY), 1234) == Endpoint("127.0.0.1", 1234)


def test_clients_are_told_another_address_where_there_is_one():
    there = Endpoint("node.example", 9092)
    assert advertised(NodeConfig(kafka=ANY, advertised=there), 1234) == there


def test_a_port_that_is_left_open_is_the_one_that_was_picked():
    there = Endpoint("node.example", 0)
    assert advertised(NodeConfig(kafka=ANY, advertised=there), 1234).port == 1234


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::0"])
def test_no_client_is_told_to_connect_to_all_addresses(host: str):
    assert is_unspecified(host)
    config = NodeConfig(kafka=Endpoint(host, 0), is_insecure=True)
    with pytest.raises(InvalidConfig, match="--advertise"):
        advertised(config, 1234)


# Stopping.


def test_a_member_that_waits_for_others_is_answered_when_the_node_stops(tmp_path: Path):
    with (
        running_broker(tmp_path, broker=EAGER) as broker,
        RawClient(broker.bootstrap) as first,
        RawClient(broker.bootstrap) as second,
    ):
        join(first, "g")
        joined = first.receive()
        assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=(assignment,),
        )
        assert first.call(sync, 3).error_code == 0
        join(second, "g")
        groups = broker.server.broker.groups
        wait_until(lambda: groups.listed()[0].state == "PreparingRebalance")
        assert stop(broker) < 5, "far less than members wait for each other"
        assert second.receive().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert second.is_closed_by_peer()
        assert first.is_closed_by_peer()


def test_a_fetch_that_waits_for_records_is_answered_when_the_node_stops(tmp_path: Path):
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "t")
        waiting_fetch(client, "t")
        waiting = broker.server._kafka.fetch_sessions.waiting
        wait_until(lambda: waiting)
        assert stop(broker) < 5
        answer = client.receive().responses[0].partitions[0]
        assert (answer.error_code, answer.records) == (0, b"")
        assert client.is_closed_by_peer()


def test_idle_clients_and_half_a_request_do_not_hold_up_the_end(tmp_path: Path):
    with running_broker(tmp_path) as broker:
        clients = [RawClient(broker.bootstrap) for _ in range(20)]
        clients[0].socket.sendall(b"\0\0\1\0half")
        wait_until(lambda: broker.server._kafka.connection_count == 20)
        assert stop(broker) < 5
        for client in clients:
            assert client.is_closed_by_peer()
            client.socket.close()


def test_requests_that_were_begun_are_answered_before_the_end(tmp_path: Path):
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "t")
        produced: list[int] = []

        def produce_on() -> None:
            try:
                while True:
                    produced.append(produce(client, "t", b"x"))
            except ConnectionError:
                pass

        thread = threading.Thread(target=produce_on)
        thread.start()
        wait_until(lambda: len(produced) > 20)
        stop(broker)
        thread.join()
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        assert produce(client, "t", b"x") == len(produced), "none was lost, and none was doubled"


def test_a_client_that_does_not_read_is_dropped_when_patience_ends(tmp_path: Path):
    kafka_server = KafkaConfig(output_bytes_max=64 * 1024)
    config = config_of(tmp_path, kafka_server=kafka_server, drain_ms_max=1_000)
    broker = RunningBroker(config)
    broker.start()
    try:
        with RawClient(broker.bootstrap) as client:
            create_topic(client, "t")
            for _ in range(20):
                produce(client, "t", b"x" * 1_000_000)
            part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=1 << 30,
                session_epoch=-1,
                topics=(FetchRequestTopic(topic="t", partitions=(part,)),),
            )
            client.send(request, 12)
            counter = broker.server._kafka.counters.requests["Fetch"]
            wait_until(lambda: counter.count)
            assert stop(broker) < 20
    finally:
        broker.stop()


def test_a_node_that_is_stopping_is_started_alive_and_not_ready(tmp_path: Path):
    config = config_of(tmp_path, broker=EAGER)
    broker = RunningBroker(config)
    broker.start()
    released = asyncio.Event()
    found: list[tuple[int, dict[str, object]]] = []

    drain = broker.server._kafka.drain

    async def drain_later() -> None:
        await released.wait()
        await drain()

    broker.server._kafka.drain = drain_later
    thread = threading.Thread(target=broker.stop)
    thread.start()
    try:
        wait_until(lambda: not broker.server.health().is_ready)
        found = [health(broker, what) for what in ("live", "startup", "ready")]
    finally:
        broker._loop.call_soon_threadsafe(released.set)
        thread.join()
    assert [status for status, _ in found] == [200, 200, 503]
    assert found[2][1] == {
        "status": "not ready",
        "problems": [{"code": "stopping", "message": "the node is stopping"}],
    }


def test_stopping_twice_does_nothing_the_second_time(tmp_path: Path):
    with running_broker(tmp_path) as broker:
        stop(broker)


STUCK = """
import asyncio, logging, sys
from millstream.broker.broker import Broker
from millstream.config.schema import Endpoint, NodeConfig
from millstream.node import run

async def never(self):
    await asyncio.get_running_loop().run_in_executor(None, input)

Broker.close = never
logging.basicConfig(format="%(message)s")
port = Endpoint("127.0.0.1", 0)
config = NodeConfig(data=sys.argv[1], kafka=port, http=port, drain_ms_max=int(sys.argv[2]))
run(config, lambda server: print("ready", flush=True))
"""


def start_stuck(data: Path, drain_ms_max: int) -> subprocess.Popen[str]:
    """A node whose data cannot be closed, as on a disk that does not answer any more."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(data), str(drain_ms_max)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_node_that_does_not_stop_in_time_ends_and_says_so(tmp_path: Path):
    with start_stuck(tmp_path, 200) as process:
        process.terminate()
        assert process.wait(timeout=60) == 1
        assert process.stderr.read() == "not stopped within 200 ms\n"


def test_a_node_that_cannot_be_closed_after_sigquit_ends_with_1(tmp_path: Path):
    with start_stuck(tmp_path, 200) as process:
        process.send_signal(signal.SIGQUIT)
        assert process.wait(timeout=60) == 1
        assert "not stopped within 200 ms" in process.stderr.read()


def test_a_second_signal_ends_a_node_at_once(tmp_path: Path):
    with start_stuck(tmp_path, 3_600_000) as process:
        process.terminate()
        while process.poll() is None:
            time.sleep(0.02)
            process.terminate()
        assert process.returncode == 1


def test_the_cluster_keeps_its_id_for_life(tmp_path: Path):
    async def cluster_id() -> str:
        broker = await Broker.open(str(tmp_path))
        found = broker.cluster_id
        await broker.close()
        return found

    first, second = asyncio.run(cluster_id()), asyncio.run(cluster_id())
    assert first == second
    assert len(first) == 22
