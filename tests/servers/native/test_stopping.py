"""Stopping a node with native clients: answers are sent, and what was acknowledged is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from millstream.config.schema import Endpoint, NativeConfig, NodeConfig
from millstream.errors import InvalidConfig
from millstream.node import Node
from millstream.protocols.native.frame import Flag
from millstream.protocols.native.record_set import RAW, typed_record
from millstream.testing.broker import running_broker

from .client import NativeClient, get_json

SERVE = """
import sys
from millstream.cli.main import main
main(["serve", "--data", sys.argv[1], "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0",
      *sys.argv[2:]])
"""


class Served:
    """A node in a process of its own."""

    def __init__(self, data, *options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, os.fspath(data), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addresses = {}
        for line in self.process.stdout:
            if line.strip() == "ready":
                break
            server, _, address = line.strip().partition(" ")
            self.addresses[server] = address

    @property
    def native(self):
        host, _, port = self.addresses["native"].rpartition(":")
        return Endpoint(host, int(port))

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait(60)
        self.process.stdout.close()
        return self.process.returncode


def ingest_forever(client, number, acknowledged):
    while True:
        value = b"%d" % len(acknowledged)
        client.ingest(number, value)
        acknowledged.append(value)


def receive_forever(client, answers):
    while True:
        answers.append(client.answer()[0])


def everything(client, number):
    data, offset = b"", 0
    while True:
        fetched, part = client.fetch(number, offset)
        if not part:
            return data
        data, offset = data + part, fetched.next_offset


def test_acknowledged_records_survive_a_kill_in_the_middle_of_many(tmp_path):
    served = Served(tmp_path, "--native", "127.0.0.1:0")
    acknowledged = []
    with NativeClient(served.native) as client:
        number = client.create("orders")["id"]
        client.commit(number, 7, consumer=5)
        killer = threading.Timer(0.5, served.process.kill)
        killer.start()
        with pytest.raises((EOFError, ConnectionError)):
            ingest_forever(client, number, acknowledged)
        killer.join()
    served.end(signal.SIGKILL)
    assert acknowledged
    again = Served(tmp_path, "--native", "127.0.0.1:0")
    with NativeClient(again.native) as client:
        assert client.topics() == {"orders": number}
        kept = everything(client, number)
        assert kept.startswith(b"".join(typed_record(RAW, value) for value in acknowledged))
        again.url = again.addresses["http"]
        [offset] = get_json(again, "/v1/groups/native-0000000000000005")["offsets"]
        assert (offset["topic"], offset["committed"]) == ("orders", 7)
    assert again.end(signal.SIGTERM) == 0


def test_records_that_were_sent_before_a_stop_are_answered_and_then_the_connection_ends(tmp_path):
    with running_broker(tmp_path, native_server=NativeConfig()) as broker:
        client = NativeClient(broker.native)
        idle = NativeClient(broker.native)
        number = client.create("orders")["id"]
        for value in range(50):
            client.send(client.ingest_frame(number, b"%d" % value))
        assert client.answer()[0].flags == Flag.ACK
    answers = []
    with pytest.raises((EOFError, ConnectionError)):
        receive_forever(client, answers)
    assert {header.flags for header in answers} <= {Flag.ACK}
    assert idle.is_closed()
    for connection in (client, idle):
        connection.socket.close()
    with (
        running_broker(tmp_path, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as reader,
    ):
        assert reader.fetch(number, 0)[0].record_count > len(answers)


def test_a_node_without_the_server_does_not_load_it(tmp_path):
    script = f"""
import asyncio, sys
from millstream.config.schema import Endpoint, NodeConfig
from millstream.node import Node

async def run():
    any_port = Endpoint("127.0.0.1", 0)
    async with Node(NodeConfig(data={os.fspath(tmp_path)!r}, kafka=any_port, http=any_port)):
        loaded = [n for n in sys.modules if n.startswith(("millstream.servers.native",
                  "millstream.protocols.native", "millstream.broker.topics.topic_numbers"))]
        print(loaded)

asyncio.run(run())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_an_address_that_is_taken_is_named(tmp_path):
    with running_broker(tmp_path / "first", native_server=NativeConfig()) as broker:
        any_port = Endpoint("127.0.0.1", 0)
        config = NodeConfig(
            data=os.fspath(tmp_path / "second"), kafka=any_port, http=any_port, native=broker.native
        )
        with pytest.raises(InvalidConfig, match=r"cannot listen on 127.0.0.1:\d+ \(native\)"):
            broker.run(Node(config).start())
