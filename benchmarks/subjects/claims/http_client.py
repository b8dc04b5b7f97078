"""CPU time of an append in the process of our client, beside httpx."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvloop
from measure.experiment import Arm, Experiment, Figures, Row, Scale

import millstream
from subjects.http.load import ask, connect, post
from subjects.http.processes import node

TOPIC = "client"
BODY = b'{"records":[{"value":{"n":1}}]}'
PATH = f"/v1/topics/{TOPIC}/records"
JSON = {"content-type": "application/json"}


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=20, quick=500, full=3_000)
    with node(folder / "data") as server:
        url = f"http://127.0.0.1:{server.port}"
        with millstream.Client(url) as client:
            client.create_topic(TOPIC, durability="disk")  # Waiting for the disk is no CPU.

        def bare() -> Figures:
            request = post(PATH, BODY)
            with connect(server.port) as connection:
                return {"socket": _time(lambda: ask(connection, request), count)}

        def ours() -> Figures:
            with millstream.Client(url) as client:
                return {"ours": _time(lambda: client.append(TOPIC, {"n": 1}), count)}

        def theirs() -> Figures:
            with httpx.Client(base_url=url, headers=JSON) as client:
                return {
                    "httpx": _time(
                        lambda: client.post(PATH, content=BODY).raise_for_status(), count
                    )
                }

        async def ours_awaiting() -> float:
            async with millstream.AsyncClient(url) as client:
                return await _time_awaiting(lambda: client.append(TOPIC, {"n": 1}), count)

        async def theirs_awaiting() -> float:
            async with httpx.AsyncClient(base_url=url, headers=JSON) as client:
                return await _time_awaiting(lambda: client.post(PATH, content=BODY), count)

        yield (
            bare,
            ours,
            theirs,
            lambda: {"ours awaiting": _on_loop(ours_awaiting())},
            lambda: {"httpx awaiting": _on_loop(theirs_awaiting())},
        )


def _time(work: Callable[[], object], count: int) -> float:
    """Return the CPU of this process for each call, in milliseconds."""
    work()
    started = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - started) / count * 1e3


async def _time_awaiting(work: Callable[[], Awaitable[object]], count: int) -> float:
    await work()
    started = time.process_time()
    for _ in range(count):
        await work()
    return (time.process_time() - started) / count * 1e3


def _on_loop(work: Awaitable[float]) -> float:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)  # type: ignore[arg-type]


HTTP_CLIENT = Experiment(
    title="append by the HTTP client",
    note=(
        "One append at a time of one small record, class `disk`, and the CPU of the client's"
        " process for each: `millstream.Client` and `AsyncClient`, beside httpx with a body that is"
        " ready, which neither tries again nor reads the answer. A bare socket with a request that"
        " is ready is what the kernel alone takes."
    ),
    rows=(
        Row(
            name="append by the client, CPU of the client",
            unit="ms",
            ours="ours",
            limit="httpx",
            limit_name="httpx",
        ),
        Row(
            name="append by the awaiting client, CPU of the client",
            unit="ms",
            ours="ours awaiting",
            limit="httpx awaiting",
            limit_name="httpx, awaiting",
        ),
        Row(
            name="append by the client, beside a bare socket",
            unit="ms",
            ours="ours",
            limit="socket",
            limit_name="bare socket",
        ),
    ),
    arms=_arms,
)
