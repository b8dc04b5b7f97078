"""Measures logins with wrong passwords: what they tell an attacker, and what they cost others.

    python benchmarks/logins.py names               2,000 logins of each kind, by mechanism
    python benchmarks/logins.py names --logins 200
    python benchmarks/logins.py flood               50 failed logins a second for 30 s

`names` compares users that exist with users that do not. An attacker who can tell the two apart by
their time can find out names. In turns, in one process and without a network, which would hide
small differences here, and not from a patient attacker.
The medians should differ by less than 5 %.

`flood` measures the small produces of another client, with and without failed logins, in turns of
five seconds. Each failed login is a connection of its own, from another address than the one
before: a node lets one address fail ten times a second and slows it further. The 99th percentile
should at most double.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import multiprocessing
import re
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paths

from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.sasl.failure import LoginFailed
from millstream.broker.access.sasl.scram import make_credential, make_salt
from millstream.clock import SystemClock
from millstream.config.schema import AccessConfig, SaslMechanism
from millstream.protocols.kafka.codec.message import encode
from millstream.protocols.kafka.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from millstream.servers.kafka.logins import ConnectionLogin, KafkaLogins

USERS = 50

TOPIC = "bench"
FAILED_PER_SECOND = 50
TURN_SECONDS = 5.0
PRODUCE_SECONDS = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["names", "flood"])
    parser.add_argument("--logins", type=int, default=2_000, help="of each kind, for names")
    parser.add_argument("--seconds", type=float, default=30.0, help="of failed logins, for flood")
    parser.add_argument("--durability", default="fsync", help="of the topic of flood")
    arguments = parser.parse_args()
    if arguments.what == "names":
        asyncio.run(names(arguments.logins))
        return
    for mechanism in (SaslMechanism.SCRAM_SHA_256, SaslMechanism.PLAIN):
        with tempfile.TemporaryDirectory() as folder:
            flood(Path(folder), mechanism, arguments.seconds, arguments.durability)


async def names(count: int) -> None:
    config = AccessConfig(enabled=True)
    stored = {f"user-{number}": credentials(number, config) for number in range(USERS)}
    access: Any = SimpleNamespace(
        scram_of=lambda name: stored.get(name, {}),
        scram_shapes=dict,
        jwt=None,
        note_failed_login=lambda *_: None,
    )
    logins = KafkaLogins(access, config, secret=bytes(32), clock=SystemClock(), is_tls=True)
    logins.limits = SimpleNamespace(  # type: ignore[assignment]
        wait_seconds=lambda *_: 0.0, note_failure=lambda *_: None
    )
    for mechanism in logins.mechanisms:
        seconds: dict[str, list[float]] = {"user": [], "nope": []}
        for number in range(count):
            turn = list(seconds.items())
            for kind, taken in turn if number % 2 else reversed(turn):  # None is always first.
                taken.append(await attempt(logins, mechanism, f"{kind}-{number % USERS}"))
        known, unknown = (statistics.median(taken) * 1e6 for taken in seconds.values())
        print(
            f"{mechanism.value:14} known {known:8.1f} µs, unknown {unknown:8.1f} µs,"
            f" {100 * (unknown / known - 1):+.1f} %"
        )
    logins.close()


def credentials(number: int, config: AccessConfig) -> dict[ScramMechanism, Any]:
    salt = make_salt(hashlib.sha256(b"%d" % number).digest())
    return {
        mechanism: make_credential(
            mechanism, "secret", salt=salt, iterations=config.scram_iterations
        )
        for mechanism in ScramMechanism
    }


async def attempt(logins: KafkaLogins, mechanism: SaslMechanism, name: str) -> float:
    """Return the time of one login that fails at its end."""
    connection: Any = SimpleNamespace(caller=Caller(), host="127.0.0.1", end=lambda: None)
    login = ConnectionLogin(logins, connection)
    began = time.perf_counter()
    login.begin(mechanism)
    try:
        if mechanism is SaslMechanism.PLAIN:
            await login.step(f"\0{name}\0wrong".encode())
        else:
            first = (await login.step(f"n,,n={name},r=nonce".encode())).answer.decode()
            nonce = first.partition(",")[0]
            size = 32 if mechanism is SaslMechanism.SCRAM_SHA_256 else 64
            proof = base64.b64encode(bytes(size)).decode()
            await login.step(f"c=biws,{nonce},p={proof}".encode())
    except LoginFailed as failed:
        if failed.reason in ("wrong password", "unknown user"):
            return time.perf_counter() - began
        raise
    raise AssertionError("the login should have failed")


# Other clients while logins fail.


def flood(folder: Path, mechanism: SaslMechanism, seconds: float, durability: str) -> None:
    """Compare the produces of a client with and without failed logins."""
    settings = (
        "access.enabled=true",
        "access.super_users=ANONYMOUS",
        "access.plain_without_tls=true",
    )
    options = [part for setting in settings for part in ("--set", setting)]
    with (
        paths.running([*paths.node_command(folder / "data"), *options], paths.CPU, folder) as node,
        multiprocessing.Pool(1) as pool,
    ):
        with closing(paths.HttpConnection(node.ports["http"])) as http:
            http.ask("PUT", f"/v1/topics/{TOPIC}", {"durability": durability})
        with closing(paths.KafkaConnection(node.ports["kafka"])) as client:
            frame = paths.produce_frame(TOPIC, [paths.record_batch([bytes(100)])], acks=-1)
            produce(client, frame, 2.0)  # To warm up.
            taken: dict[str, list[float]] = {"quiet": [], "failing": []}
            failed = 0
            for _ in range(max(1, round(seconds / TURN_SECONDS))):
                taken["quiet"] += produce(client, frame, TURN_SECONDS)
                port = node.ports["kafka"]
                failing = pool.apply_async(fail_logins, (port, mechanism.value, TURN_SECONDS))
                taken["failing"] += produce(client, frame, TURN_SECONDS)
                failed += failing.get(60)
    quiet, failing_ms = (_percentile(found, 0.99) * 1e3 for found in taken.values())
    print(
        f"{mechanism.value:14} {durability}: p99 of {len(taken['quiet'])} produces"
        f" {quiet:.2f} ms, of {len(taken['failing'])} beside {failed} failed logins"
        f" {failing_ms:.2f} ms:"
        f" {failing_ms / quiet:.2f} times; medians"
        f" {_percentile(taken['quiet'], 0.5) * 1e3:.2f} and"
        f" {_percentile(taken['failing'], 0.5) * 1e3:.2f} ms"
    )


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def produce(client: paths.KafkaConnection, frame: bytes, seconds: float) -> list[float]:
    """Produce a record every two milliseconds; return how long each took."""
    taken = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        paths.check_produced(client.ask(frame), TOPIC, 1)
        taken.append(time.perf_counter() - began)
        time.sleep(max(0.0, PRODUCE_SECONDS - taken[-1]))
    return taken


def fail_logins(port: int, mechanism: str, seconds: float) -> int:
    """Log in with wrong passwords at a steady rate; return how many failed. In its own process."""
    began, count, open_sockets = time.perf_counter(), 0, []
    while (due := count / FAILED_PER_SECOND) < seconds:
        time.sleep(max(0.0, began + due - time.perf_counter()))
        address = f"127.0.{1 + count // 200 % 200}.{1 + count % 200}"
        connection = socket.create_connection(
            ("127.0.0.1", port), timeout=30, source_address=(address, 0)
        )
        name = f"user-{count % USERS}"
        _send(connection, SaslHandshakeRequest(mechanism=mechanism))
        if mechanism == SaslMechanism.PLAIN.value:
            _send(connection, SaslAuthenticateRequest(auth_bytes=f"\0{name}\0wrong".encode()))
        else:
            first = SaslAuthenticateRequest(auth_bytes=f"n,,n={name},r=nonce".encode())
            challenge = _send(connection, first)
            nonce = re.search(rb"r=[^,]+", challenge)
            assert nonce is not None
            proof = base64.b64encode(bytes(32))
            message = b"c=biws,%b,p=%b" % (nonce[0], proof)
            _send(connection, SaslAuthenticateRequest(auth_bytes=message), is_answered=False)
        open_sockets.append(connection)
        if len(open_sockets) > FAILED_PER_SECOND:  # Each was refused a second ago.
            open_sockets.pop(0).close()
        count += 1
    for connection in open_sockets:
        connection.close()
    return count


def _send(connection: socket.socket, request: Any, *, is_answered: bool | None = None) -> bytes:
    """Send a request; return its response, for which the last one of a login is not waited."""
    key, version = (17, 1) if isinstance(request, SaslHandshakeRequest) else (36, 1)
    body = bytes(encode(request, version))
    head = struct.pack(">hhih", key, version, 1, 5) + b"flood"
    connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
    if is_answered is None:
        is_answered = not (key == 36 and request.auth_bytes.startswith(b"\0"))
    if not is_answered:
        return b""
    stream = connection.makefile("rb")
    return stream.read(int.from_bytes(stream.read(4)))


if __name__ == "__main__":
    main()
