"""Measures logins of users that exist beside those of users that do not, with wrong passwords.

    python benchmarks/logins.py                     2,000 logins of each, by mechanism
    python benchmarks/logins.py --logins 200

An attacker who can tell the two apart by their time can find out names. In turns, in one process
and without a network, which would hide small differences here, and not from a patient attacker.
The medians should differ by less than 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import statistics
import time
from types import SimpleNamespace
from typing import Any

from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.sasl.failure import LoginFailed
from millstream.broker.access.sasl.scram import make_credential, make_salt
from millstream.clock import SystemClock
from millstream.config.schema import AccessConfig, SaslMechanism
from millstream.servers.kafka.logins import ConnectionLogin, KafkaLogins

USERS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--logins", type=int, default=2_000, help="logins of each kind")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.logins))


async def run(count: int) -> None:
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


if __name__ == "__main__":
    main()
