"""Operations that delete old data, and clients that read the remaining records."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from millstream.testing.broker import RunningBroker

from . import librdkafka
from .conftest import TIMEOUT_S

with warnings.catch_warnings():
    # kafka-python loads its schemas through a part of the standard library that is on its way out.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka import TopicPartition as PythonPartition

KAFKAJS = Path(__file__).parent / "kafkajs"
LIBRDKAFKA_RESET = {"earliest": "earliest", "latest": "latest", "none": "error"}
WAIT_MS = 20
"""How long a client's fetch waits: these tests read to the end over and over."""


class Seen(NamedTuple):
    """A record as an application receives it."""

    offset: int
    key: str | None
    value: str | None


class Life:
    """Operations on the records of a topic with one partition.

    Our broker runs maintenance on request; Kafka runs it by its own schedule, and the tests wait
    for it.
    """

    def __init__(self, node: RunningBroker | None, admin: AdminClient, bootstrap: str) -> None:
        self.is_ours = node is not None
        self._node = node
        self._admin = admin
        self._bootstrap = bootstrap

    def configure(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set some configs of a topic."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def evict(self, topic: str) -> int:
        """Let retention delete all records; return the next offset."""
        self.configure(topic, {"retention.ms": "1"})
        end = self.watermarks(topic)[1]
        self._until(lambda: self.watermarks(topic)[0] == end)
        self.configure(topic, {"retention.ms": "-1"})
        return end

    def compact(self, topic: str, is_done: Callable[[], bool]) -> None:
        """Compact a topic, and wait for the result."""
        self._until(is_done)

    def delete_key(self, topic: str, key: str) -> int:
        """Delete all records of a key; returns how many. Kafka cannot."""
        assert self._node is not None
        partition = self._node.server.broker.topics.partition(topic, 0)
        return self._node.run(partition.delete_keys(key=key.encode()))

    def reclaim(self) -> None:
        """Remove deleted records from the files. Kafka cannot."""
        assert self._node is not None
        self._node.run(self._node.server.broker.store.maintenance.run_once(is_forced=True))

    def watermarks(self, topic: str) -> tuple[int, int]:
        """The first offset, and the one after the last."""
        reader = librdkafka.consumer(self._bootstrap)
        try:
            return reader.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S, cached=False)
        finally:
            reader.close()

    def _until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_done():
            assert time.monotonic() < deadline, "what was waited for did not happen"
            if self._node is not None:
                self.reclaim()


class Reading(NamedTuple):
    """How a client reads one partition to its end."""

    bootstrap: str
    topic: str
    offset: int
    """Where it begins."""
    count: int = 0
    """How many records there should be: for KafkaJS only, which does not say where it is."""
    is_committed: bool = False
    bytes_max: int = 1024 * 1024
    """How much a fetch may bring; one batch always comes."""
    reset: str = "none"
    """Reset policy for an offset out of range: `earliest`, `latest`, or `none`, an error."""

    @property
    def isolation(self) -> str:
        return "read_committed" if self.is_committed else "read_uncommitted"


def with_confluent(reading: Reading) -> list[Seen]:
    settings = {
        "isolation.level": reading.isolation,
        "max.partition.fetch.bytes": reading.bytes_max,
        "auto.offset.reset": LIBRDKAFKA_RESET[reading.reset],
    }
    found = librdkafka.read_all(reading.bootstrap, reading.topic, settings, offset=reading.offset)
    return [_seen(one.offset(), one.key(), one.value()) for one in found]


def with_kafka_python(reading: Reading) -> list[Seen]:
    reader = KafkaConsumer(
        bootstrap_servers=reading.bootstrap,
        isolation_level=reading.isolation,
        max_partition_fetch_bytes=reading.bytes_max,
        auto_offset_reset=reading.reset,
        enable_auto_commit=False,
        fetch_max_wait_ms=WAIT_MS,
    )
    place = PythonPartition(reading.topic, 0)
    found: list[Seen] = []
    try:
        reader.assign([place])
        reader.seek(place, reading.offset)
        (end,) = reader.end_offsets([place]).values()
        deadline = time.monotonic() + TIMEOUT_S
        while reader.position(place) < end:
            assert time.monotonic() < deadline, f"{reader.position(place)} of {end} was reached"
            for batch in reader.poll(timeout_ms=WAIT_MS).values():
                found += [_seen(one.offset, one.key, one.value) for one in batch]
    finally:
        reader.close()
    return found


def with_aiokafka(reading: Reading) -> list[Seen]:
    async def read() -> list[Seen]:
        reader = AIOKafkaConsumer(
            bootstrap_servers=reading.bootstrap,
            isolation_level=reading.isolation,
            max_partition_fetch_bytes=reading.bytes_max,
            auto_offset_reset=reading.reset,
            enable_auto_commit=False,
            fetch_max_wait_ms=WAIT_MS,
        )
        await reader.start()
        place = AioPartition(reading.topic, 0)
        found: list[Seen] = []
        try:
            reader.assign([place])
            reader.seek(place, reading.offset)
            end = (await reader.end_offsets([place]))[place]
            while await reader.position(place) < end:
                for batch in (await reader.getmany(timeout_ms=WAIT_MS)).values():
                    found += [_seen(one.offset, one.key, one.value) for one in batch]
        finally:
            await reader.stop()
        return found

    return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


def with_kcat(reading: Reading) -> list[Seen]:
    settings = {
        "isolation.level": reading.isolation,
        "max.partition.fetch.bytes": reading.bytes_max,
        "auto.offset.reset": LIBRDKAFKA_RESET[reading.reset],
        "fetch.wait.max.ms": WAIT_MS,
        "check.crcs": "true",
    }
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    command = ["kcat", "-b", reading.bootstrap, "-C", "-t", reading.topic, "-p", "0"]
    command += ["-o", str(reading.offset)]
    output = _run([*command, "-e", "-q", "-J", *options])
    lines = [json.loads(line) for line in output.splitlines()]
    return [Seen(line["offset"], line["key"], line["payload"]) for line in lines]


def with_kafkajs(reading: Reading) -> list[Seen]:
    unique = f"{reading.topic}-{time.monotonic_ns()}"
    settings = {
        "readUncommitted": not reading.is_committed,
        "maxBytesPerPartition": reading.bytes_max,
        "maxWaitTimeInMs": WAIT_MS,
        "fromBeginning": reading.reset == "earliest",
    }
    what = [reading.topic, str(reading.offset), str(reading.count), json.dumps(settings)]
    seen = _run(["node", "scenario.js", "read", reading.bootstrap, unique, *what], KAFKAJS)
    return [Seen(*one) for one in json.loads(seen)]


CLIENTS: dict[str, Callable[[Reading], list[Seen]]] = {
    "confluent": with_confluent,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
    "kcat": with_kcat,
    "kafkajs": with_kafkajs,
}


def _seen(offset: int, key: bytes | None, value: bytes | None) -> Seen:
    key_text, value_text = (None if data is None else data.decode() for data in (key, value))
    return Seen(offset, key_text, value_text)


def _run(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
