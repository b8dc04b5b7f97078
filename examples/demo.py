"""Millstream in a minute: serve, produce, consume, be killed, recover, verify, analyse.

`make demo` runs this. It leaves its data in `demo-data/`, so that you can look around afterwards,
and starts anew each time.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import millstream

DATA = Path("demo-data")
COMMAND = Path(sys.executable).with_name("millstream")
PAGES = ("/", "/pricing", "/docs", "/docs/start", "/blog")
PARTITIONS = 3
EVENTS = 5_000
EVENTS_UNDER_FIRE = 30_000
KILL_AFTER = 5_000
PATIENCE = 60.0


class Node:
    """`millstream serve`, in a process of its own."""

    def __init__(self, kafka: str = "127.0.0.1:0") -> None:
        started = time.perf_counter()
        options = ["--data", str(DATA), "--kafka", kafka, "--http", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [COMMAND, "serve", *options, "--log-level", "error"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        said = dict(line.split() for line in iter(self.process.stdout.readline, "ready\n"))
        self.bootstrap, self.url = said["kafka"], said["http"]
        self.seconds = time.perf_counter() - started

    def end(self, number: int) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        self.process.communicate()
        return self.process.returncode


def main() -> None:
    """Tell the story, step by step."""
    shutil.rmtree(DATA, ignore_errors=True)
    node = start()
    produce(node)
    consume(node)
    node = survive_a_kill(node)
    check(node)
    stop(node)
    verify()
    analyse()
    say(f"That was it. The data is in {DATA}/; have a look:")
    print(f"    .venv/bin/millstream segments list --data {DATA}")
    print(f"    .venv/bin/millstream segments dump --data {DATA} --topic clicks --limit 3")
    print(f"    .venv/bin/millstream serve --data {DATA}")


def start() -> Node:
    """Start a node, and make a topic."""
    say("We start a node. Any Kafka client can connect to it.")
    node = Node()
    print(f"    ready after {node.seconds:.1f} s; Kafka at {node.bootstrap}, HTTP at {node.url}")
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("clicks", PARTITIONS, 1)])["clicks"].result(PATIENCE)
    print(f"    topic `clicks`, {PARTITIONS} partitions, made by Kafka's own admin client")
    return node


def produce(node: Node) -> None:
    """Send sample events."""
    say(f"confluent-kafka sends {EVENTS:,} clicks, and waits until all are on the disk.")
    producer = make_producer(node)
    started = time.perf_counter()
    for event in clicks(0, EVENTS):
        producer.produce("clicks", **event)
    assert producer.flush(PATIENCE) == 0
    print(f"    acknowledged after {time.perf_counter() - started:.2f} s")


def consume(node: Node) -> None:
    """Read them with a group, and show what the group has committed."""
    say("A consumer group reads them back and commits how far it came.")
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "dashboard",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["clicks"])
    pages: Counter[str] = Counter()
    while pages.total() < EVENTS:
        pages.update(json.loads(message.value())["page"] for message in read_some(consumer))
    for page, count in pages.most_common():
        print(f"    {count:>6,}  {page}")
    for done in consumer.commit(asynchronous=False):
        print(
            f"    group `dashboard` committed offset {done.offset:,} of partition {done.partition}"
        )
    consumer.close()


def survive_a_kill(node: Node) -> Node:
    """Kill the node while it writes, and start it again."""
    say(f"Now {EVENTS_UNDER_FIRE:,} more. After {KILL_AFTER:,} we kill the node with SIGKILL,")
    print("    mid-write, and start it again. The producer is idempotent: it sends again what")
    print("    was not acknowledged, and the node recognises what it has already.")
    producer = make_producer(node)
    acked = 0

    def on_delivery(error: object, _: Message) -> None:
        nonlocal acked
        assert error is None, error
        acked += 1

    def kill_and_start_again() -> Node:
        status, waiting = node.end(signal.SIGKILL), len(producer)
        print(f"    killed, exit status {status}: {acked:,} acknowledged, {waiting:,} under way")
        again = Node(node.bootstrap)
        print(f"    ready again after {again.seconds:.1f} s, and the producer goes on by itself")
        return again

    again = None
    for event in clicks(EVENTS, EVENTS + EVENTS_UNDER_FIRE):
        producer.produce("clicks", **event, on_delivery=on_delivery)
        producer.poll(0)
        if again is None and acked >= KILL_AFTER:
            again = kill_and_start_again()
    while again is None:
        producer.poll(0.001)
        if acked >= KILL_AFTER:
            again = kill_and_start_again()
    assert producer.flush(PATIENCE) == 0
    print(f"    all {acked:,} acknowledged")
    return again


def check(node: Node) -> None:
    """Show that every event is there once, and that the group is where it was."""
    say("Is every click there, once?")
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "auditor",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("clicks", number, 0) for number in range(PARTITIONS)])
    total = EVENTS + EVENTS_UNDER_FIRE
    ends = [
        consumer.get_watermark_offsets(TopicPartition("clicks", number), timeout=PATIENCE)[1]
        for number in range(PARTITIONS)
    ]
    found: Counter[int] = Counter()
    while found.total() < sum(ends):
        found.update(json.loads(message.value())["number"] for message in read_some(consumer))
    consumer.close()
    lost = total - len(found)
    doubled = sum(count - 1 for count in found.values())
    print(f"    {found.total():,} records of {total:,} clicks: {lost} lost, {doubled} doubled")
    assert (lost, doubled) == (0, 0)
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    say("The group is where it was, so it has some catching up to do. /metrics tells how much:")
    for line in lines:
        if line.startswith("millstream_group_lag_records"):
            print(f"    {line}")


def stop(node: Node) -> None:
    """Stop the node cleanly."""
    say("SIGTERM: the node answers what is under way, commits, seals its segments and ends.")
    print(f"    exit status {node.end(signal.SIGTERM)}")


def verify() -> None:
    """Check every byte, then break one and check again."""
    say("`millstream segments verify` checks every byte that a checksum covers.")
    run("segments", "verify", "--data", str(DATA))
    say("A cosmic ray flips one bit in a copy. It is found, with file and position.")
    copy = DATA.with_name("demo-data-broken")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(DATA, copy)
    path = next(copy.glob("topics/clicks/0/*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    run("segments", "verify", "--data", str(copy))
    shutil.rmtree(copy)


def analyse() -> None:
    """Read the topic as Arrow columns and count."""
    say("Without a node, the same topic opens inside a process, here as Arrow columns.")
    with millstream.open(DATA) as store:
        batches = [
            batch
            for number in range(PARTITIONS)
            for batch in store.log("clicks", number).read_arrow(columns=["key", "value"])
        ]
    table = pa.Table.from_batches(batches)
    users = pc.count_distinct(table["key"]).as_py()
    print(f"    {table.num_rows:,} clicks of {users} users, {table.nbytes / 1024:,.0f} KiB")
    pages = pc.value_counts(
        pc.struct_field(
            pc.extract_regex(table["value"].cast(pa.string()), r'"page": "(?P<page>[^"]*)"'), "page"
        )
    )
    for entry in sorted(pages.to_pylist(), key=lambda entry: -entry["counts"]):
        print(f"    {entry['counts']:>6,}  {entry['values']}")


# What the steps share.


def make_producer(node: Node) -> Producer:
    """Return a producer that stores every event once, whatever happens to the node."""
    return Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "enable.idempotence": True,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )


def clicks(first: int, last: int) -> Iterator[dict[str, str]]:
    """Make up events, each with a number of its own."""
    chance = random.Random(first)
    for number in range(first, last):
        user = f"user-{chance.randrange(500)}"
        yield {"key": user, "value": json.dumps({"number": number, "page": chance.choice(PAGES)})}


def read_some(consumer: Consumer) -> list[Message]:
    """Return what there is to read, if anything came within a second."""
    messages = consumer.consume(1_000, timeout=1.0)
    return [message for message in messages if message.error() is None]


def run(*arguments: str) -> None:
    """Run the `millstream` command as a user would."""
    print(f"    $ millstream {' '.join(arguments)}", flush=True)
    result = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    for line in (result.stdout + result.stderr).splitlines():
        print(f"      {line}")
    print(f"      exit status {result.returncode}")


step = 0


def say(text: str) -> None:
    """Begin a step."""
    global step
    step += 1
    print(f"\n{step}.  {text}", flush=True)


if __name__ == "__main__":
    main()
