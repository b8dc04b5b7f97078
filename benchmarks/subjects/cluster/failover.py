"""How long writes pause when a node is killed: one partition, and a thousand."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from measure.experiment import (
    Against,
    Arm,
    Experiment,
    Figures,
    PeerArms,
    PeerMissing,
    PeerServer,
    Row,
    Scale,
    at_most,
)
from peers import kafka, nats
from peers.cluster_processes import PeerCluster

from millstream.config.schema import ClusterConfig
from subjects.cluster.nodes import (
    FSYNC,
    KAFKA,
    NATS,
    REPLICAS,
    AnyCluster,
    NodeCluster,
    leaders,
    node_cluster,
    unique_name,
    wait_until_in_sync,
)
from subjects.cluster.produce import nats_stream
from subjects.kafka.confluent import topic

LEASE_SECONDS = ClusterConfig().lease_ttl_ms / 1000
SEND_SECONDS = 0.005
WAIT_SECONDS = 60.0
ALL_SECONDS = 120.0
"""For writes to all of a thousand partitions: each has files of its own to be synced."""
NATS_WAIT_SECONDS = 1.0
LOOK_SECONDS = 0.05


class SteadyWriter(Protocol):
    """Sends numbered records all the time, one every few milliseconds."""

    def next_acknowledgement(self) -> float:
        """Return when the first record that is sent from now on was acknowledged."""
        ...

    def stop(self) -> None: ...


class Acknowledgements:
    """Which records were sent, and when which of them was acknowledged."""

    def __init__(self) -> None:
        self.sent = 0
        self.is_stopping = False
        self._changed = threading.Condition()
        self._acknowledged = -1
        self._acknowledged_at = 0.0

    def note(self, number: int) -> None:
        with self._changed:
            self._acknowledged = number
            self._acknowledged_at = time.monotonic()
            self._changed.notify_all()

    def next(self) -> float:
        """Return when the first record that is sent from now on was acknowledged."""
        number = self.sent
        with self._changed:
            if not self._changed.wait_for(lambda: self._acknowledged >= number, WAIT_SECONDS):
                raise RuntimeError(f"no acknowledgement within {WAIT_SECONDS:g} s")
            return self._acknowledged_at


class KafkaWriter:
    """An idempotent producer of confluent-kafka, otherwise with its defaults."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._topic = name
        self._acknowledgements = Acknowledgements()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        acknowledgements = self._acknowledgements
        while not acknowledgements.is_stopping:
            value = str(acknowledgements.sent)
            self._producer.produce(self._topic, value, on_delivery=self._on_delivery)
            acknowledgements.sent += 1
            self._producer.poll(SEND_SECONDS)
        self._producer.flush(WAIT_SECONDS)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._acknowledgements.note(int(message.value()))

    def next_acknowledgement(self) -> float:
        return self._acknowledgements.next()

    def stop(self) -> None:
        self._acknowledgements.is_stopping = True
        self._thread.join()


class NatsWriter:
    """Publishes with nats-py, one record after the other; what fails is sent again."""

    def __init__(self, urls: Sequence[str], subject: str) -> None:
        if importlib.util.find_spec("nats") is None:
            raise PeerMissing("nats-py is not installed; run: pip install nats-py")
        self._urls = urls
        self._subject = subject
        self._acknowledgements = Acknowledgements()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        import nats as library  # noqa: PLC0415
        from nats.errors import Error  # noqa: PLC0415

        acknowledgements = self._acknowledgements
        connection = await library.connect(
            list(self._urls), max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_ignore
        )
        stream = connection.jetstream(timeout=NATS_WAIT_SECONDS)
        while not acknowledgements.is_stopping:
            number = acknowledgements.sent
            acknowledgements.sent += 1
            with contextlib.suppress(Error):  # No leader, or no connection.
                await stream.publish(self._subject, str(number).encode())
                acknowledgements.note(number)
            await asyncio.sleep(SEND_SECONDS)
        await connection.close()

    def next_acknowledgement(self) -> float:
        return self._acknowledgements.next()

    def stop(self) -> None:
        self._acknowledgements.is_stopping = True
        self._thread.join()


async def _ignore(_: Exception) -> None:
    """Errors of a connection: publications fail by themselves."""


def pause_of_a_kill(writer: SteadyWriter, kill: Callable[[], None]) -> float:
    """Kill the leader; return after how many seconds a new record was acknowledged."""
    writer.next_acknowledgement()
    killed_at = time.monotonic()
    kill()
    return writer.next_acknowledgement() - killed_at


def kill_node(cluster: AnyCluster, number: int) -> None:
    if isinstance(cluster, NodeCluster):
        cluster.running.nodes[number].kill()
    else:
        cluster.node(str(number)).kill()


def start_node(cluster: AnyCluster, number: int, name: str) -> None:
    """Start a node again, and wait until its replicas are in sync."""
    if isinstance(cluster, NodeCluster):
        cluster.running.nodes[number].start()
    else:
        node = cluster.node(str(number))
        node.start()
        node.wait(partial(kafka.is_complete, node))
    wait_until_in_sync(cluster.bootstrap, name)


def _turn(cluster: AnyCluster, figure: str) -> Figures:
    configs = FSYNC if isinstance(cluster, NodeCluster) else {}
    with topic(cluster.bootstrap, configs, partitions=1, replicas=REPLICAS) as name:
        wait_until_in_sync(cluster.bootstrap, name)
        leader, _ = leaders(cluster.bootstrap, name)[0]
        writer = KafkaWriter(cluster.bootstrap, name)
        pause = pause_of_a_kill(writer, partial(kill_node, cluster, leader))
        start_node(cluster, leader, name)
        writer.stop()
    return {figure: pause}


def _nats_turn(cluster: PeerCluster) -> Figures:
    name = unique_name("failover")
    nats_stream(cluster, name)
    writer = NatsWriter([f"nats://127.0.0.1:{node.port}" for node in cluster.nodes], f"{name}.0")
    leader = _nats_leader(cluster.port, name)
    node = cluster.node(leader)
    pause = pause_of_a_kill(writer, node.kill)
    node.start()
    node.wait(partial(nats.is_complete, node))
    node.wait(lambda: _is_current(cluster.port, name))
    writer.stop()
    nats.ask(cluster.port, f"$JS.API.STREAM.DELETE.{name}", {})
    return {"nats": pause}


def _nats_leader(port: int, name: str) -> str:
    leader: str = nats.ask(port, f"$JS.API.STREAM.INFO.{name}", {})["cluster"]["leader"]
    return leader


def _is_current(port: int, name: str) -> bool:
    try:
        found = nats.ask(port, f"$JS.API.STREAM.INFO.{name}", {}, seconds=1)["cluster"]
    except (OSError, ValueError, RuntimeError):
        return False
    return bool(found.get("leader")) and all(each["current"] for each in found["replicas"])


@contextmanager
def _ours(_: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    with node_cluster(folder) as cluster:
        yield (partial(_turn, cluster, "ours"),)


@contextmanager
def _kafka(_: Scale, __: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    assert isinstance(server, PeerCluster)
    yield (partial(_turn, server, "kafka"),)


@contextmanager
def _nats(_: Scale, __: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    assert isinstance(server, PeerCluster)
    yield (partial(_nats_turn, server),)


FAIL_OVER = Experiment(
    title="fail-over of one partition",
    note=(
        "A client writes a record every 5 ms to one partition with three replicas: an idempotent"
        " producer of confluent-kafka, for NATS nats-py, which sends again what was not"
        " acknowledged within a second. The leader is killed with SIGKILL. The pause ends with the"
        " acknowledgement of a record that was sent after that, so it has the time until the client"
        " finds the new leader: librdkafka asks once a second. Each has its defaults: our lease of"
        " 4 s, Kafka's broker.session.timeout.ms of 9 s, and elections of NATS after 4 to 9 s."
    ),
    rows=(
        Row(
            name="pause of writes when the leader is killed",
            unit="s",
            ours="ours",
            goal=at_most(LEASE_SECONDS + 1),
            peers=(
                Against(peer=KAFKA, name=f"Kafka, {kafka.CLUSTER_NODES} nodes", figure="kafka"),
                Against(peer=NATS, name="NATS, nats-py", figure="nats"),
            ),
        ),
    ),
    arms=_ours,
    peers=(PeerArms(peer=KAFKA, arms=_kafka), PeerArms(peer=NATS, arms=_nats)),
    repetitions_smoke=1,
    repetitions_quick=3,
    repetitions_full=7,
)


def _partitions(scale: Scale) -> int:
    return scale.pick(smoke=20, quick=1000, full=1000)


class AllPartitions:
    """Writes one record to each partition of a topic."""

    def __init__(self, bootstrap: str, name: str, partitions: int) -> None:
        self._name = name
        self._partitions = partitions
        self._missing: set[int] = set()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )

    def write(self) -> None:
        """Write to all of them, and return when all are acknowledged."""
        self._missing = set(range(self._partitions))
        for partition in range(self._partitions):
            self._producer.produce(
                self._name, b"x", partition=partition, on_delivery=self._on_delivery
            )
        deadline = time.monotonic() + ALL_SECONDS
        while self._missing:
            self._producer.poll(0.01)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(self._missing)} partitions acknowledge nothing")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"a record was not delivered: {error}")
        self._missing.discard(message.partition())


def _many_turn(cluster: AnyCluster, figure: str, name: str, partitions: int) -> Figures:
    """Kill a node, the next one in each turn, and write to all partitions."""
    writer = AllPartitions(cluster.bootstrap, name, partitions)
    writer.write()
    victim = (int(unique_name("kill").rpartition("-")[2]) % REPLICAS) + 1
    led = sum(leader == victim for leader, _ in leaders(cluster.bootstrap, name).values())
    killed_at = time.monotonic()
    kill_node(cluster, victim)
    with ThreadPoolExecutor(1) as threads:
        elected = threads.submit(_until_led, cluster.bootstrap, name, victim)
        writer.write()
        written_at = time.monotonic()
        elected_at = elected.result()
    start_node(cluster, victim, name)
    return {
        f"{figure} elected": elected_at - killed_at,
        f"{figure} written": written_at - killed_at,
        f"{figure} led": led,
    }


def _until_led(bootstrap: str, name: str, victim: int) -> float:
    """Return when all partitions had a leader other than the node that was killed."""
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + ALL_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):  # The node that was killed, for example.
            found = client.list_topics(name, timeout=5).topics[name].partitions.values()
            if found and all(part.leader not in (victim, -1) for part in found):
                return time.monotonic()
        time.sleep(LOOK_SECONDS)
    raise RuntimeError(f"partitions have no leader after {ALL_SECONDS:g} s")


@contextmanager
def _many(cluster: AnyCluster, figure: str, scale: Scale) -> Iterator[Sequence[Arm]]:
    configs = FSYNC if isinstance(cluster, NodeCluster) else {}
    count = _partitions(scale)
    with topic(cluster.bootstrap, configs, partitions=count, replicas=REPLICAS) as name:
        wait_until_in_sync(cluster.bootstrap, name)
        yield (partial(_many_turn, cluster, figure, name, count),)


@contextmanager
def _many_ours(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    with node_cluster(folder) as cluster, _many(cluster, "ours", scale) as arms:
        yield arms


@contextmanager
def _many_kafka(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    assert isinstance(server, PeerCluster)
    with _many(server, "kafka", scale) as arms:
        yield arms


FAIL_OVER_MANY = Experiment(
    title="fail-over of 1,000 partitions",
    note=(
        "A topic has 1,000 partitions with three replicas. A node is killed with SIGKILL, another"
        " one in each turn: how long until the others name another leader for all that it led; and"
        " how long until a producer of confluent-kafka has written a record to each of the 1,000"
        " partitions, acknowledged by the two nodes that are left. Each partition has files of its"
        " own to sync on three nodes, on one disk here. NATS is not measured: a stream has no"
        " partitions."
    ),
    rows=(
        *(
            Row(
                name=f"1,000 partitions, a node is killed: {what}",
                unit="s",
                ours=f"ours {figure}",
                goal=goal,
                peers=(
                    Against(
                        peer=KAFKA,
                        name=f"Kafka, {kafka.CLUSTER_NODES} nodes",
                        figure=f"kafka {figure}",
                    ),
                ),
            )
            for what, figure, goal in (
                ("all have a leader", "elected", at_most(LEASE_SECONDS + 2)),
                ("all are written to", "written", None),
            )
        ),
        Row(name="partitions that the killed node led", unit="", ours="ours led"),
    ),
    arms=_many_ours,
    peers=(PeerArms(peer=KAFKA, arms=_many_kafka),),
    repetitions_smoke=1,
    repetitions_quick=1,  # It takes as long as all the others together.
    repetitions_full=5,
)
