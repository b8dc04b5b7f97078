"""Measures what one request costs the server, on the paths of produce, append, fetch and queues.

    python benchmarks/paths.py --json before.json              every load, all three figures
    python benchmarks/paths.py --load produce-1 --repeat 3     one load; --load can be repeated
    python benchmarks/paths.py --metric instructions           one figure; can be repeated too
    python benchmarks/paths.py --compare before.json after.json

It measures the tree whose `.venv/bin/python` runs it. It uses only the `millstream` command,
`millstream.open`, sockets and HTTP, so that the same file runs before and after a reorganisation
of the code, and the results can be compared. For each request it reports

- instructions, counted by callgrind in user space only: what the kernel does is not in them, nor
  is garbage collection. They hardly depend on what else the machine does: these are to be trusted;
- calls of Python functions, counted by `sys.setprofile`; resuming a coroutine counts as a call;
- microseconds of CPU of the server's process, user and system, without any tool: noisy.

Each repetition has a process of its own for each figure, and takes all loads in turn. A figure is
read before and after N and 2N requests, when the process is quiet, so that work that was put off
counts. Instructions and calls are the difference of the two windows over N, so that what is paid
once cancels out. What the process does by itself is measured first, and is subtracted. Where the
two windows do not agree on what a request costs, that is said: do not trust the figure then.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c

import millstream

RESULTS = Path("benchmarks", "results")
INSTRUCTIONS, CALLS, CPU = "instructions", "calls", "cpu_us"
METRICS = (INSTRUCTIONS, CALLS, CPU)

RECORD_SIZE = 100
BATCH_RECORDS, BATCH_RECORD_SIZE = 16, 1000
"""A batch of 16 KB: sixteen records of 1,000 bytes."""

PARTITIONS = 4
FETCHED_BATCHES = 64
"""A fetch asks for each of so many batches in turn."""

IDLE_SECONDS = 3.0
QUIET_SECONDS, QUIET_SHARE, QUIET_SECONDS_MAX = 0.3, 0.1, 30.0
"""A process is quiet when it used less than this share of a core for so long."""

WAIT_SECONDS_MAX = 120.0
"""How long a server may take to start, or to answer: under callgrind, it is fifty times slower."""

HOOK_VARIABLE = "PATHS_CALLS_SOCKET"
HOOK = f"""
import os, socket, sys, threading

path = os.environ.pop({HOOK_VARIABLE!r}, None)
if path is not None:
    count = 0

    def note(frame, event, argument):
        global count
        if event == "call":
            count += 1

    def serve(listener):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"%d" % count)

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    threading.setprofile(note)
    sys.setprofile(note)
"""
"""A `sitecustomize` that counts calls in all threads but its own, and reports over a socket."""

NO_COLLECTION = "import gc; gc.disable()"
"""A `sitecustomize` without garbage collection. A node collects once in 20,000 objects, at the cost
of some forty fetches: whether that falls into the N or the 2N requests would decide the figure. It
does so again in each repetition, so that the spread would not show it."""

DISAGREEMENT_MAX = 0.05
"""How far the cost of a request in the two windows may differ, as a share."""

Meter = Callable[[], float]
"""Returns what a process has used since it started."""

Drive = Callable[[int], None]
"""Sends so many requests, and returns when all are answered without an error."""


# The client: requests of Kafka, each built once, and checks of their answers.


def record_batch(
    values: Sequence[bytes], *, producer: tuple[int, int] = (-1, -1), sequence: int = -1
) -> bytes:
    """Return a record batch of version 2, not packed."""
    records = b"".join(_record(delta, value) for delta, value in enumerate(values))
    now = int(time.time() * 1000)
    body = struct.pack(">hiqq", 0, len(values) - 1, now, now)
    body += struct.pack(">qhii", *producer, sequence, len(values)) + records
    head = struct.pack(">ibI", -1, 2, crc32c.crc32c(body))
    return struct.pack(">qi", 0, len(head) + len(body)) + head + body


def _record(delta: int, value: bytes) -> bytes:
    """Return a record: attributes, differences of time and offset, no key, value, no headers."""
    body = b"\0\0" + _zigzag(delta) + _zigzag(-1) + _zigzag(len(value)) + value + b"\0"
    return _zigzag(len(body)) + body


def _zigzag(number: int) -> bytes:
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _compact(data: bytes) -> bytes:
    """Return a compact string or compact bytes: the length plus one, then the data."""
    return _varint(len(data) + 1) + data


def _frame(api: int, version: int, body: bytes) -> bytes:
    """Return a request with a flexible header."""
    whole = struct.pack(">hhih", api, version, 1, 5) + b"paths" + b"\0" + body
    return struct.pack(">i", len(whole)) + whole


def produce_frame(topic: str, batches: Sequence[bytes], *, acks: int) -> bytes:
    """Return Produce, version 9: one batch for each partition, from 0 on."""
    parts = b"".join(
        struct.pack(">i", index) + _compact(batch) + b"\0" for index, batch in enumerate(batches)
    )
    topics = _varint(2) + _compact(topic.encode()) + _varint(len(batches) + 1) + parts + b"\0"
    return _frame(0, 9, b"\0" + struct.pack(">hi", acks, 30_000) + topics + b"\0")


def fetch_frame(topic: str, offset: int, size_max: int) -> bytes:
    """Return Fetch, version 12: partition 0, outside any session."""
    part = struct.pack(">iiqiqi", 0, -1, offset, -1, -1, size_max) + b"\0"
    topics = _varint(2) + _compact(topic.encode()) + _varint(2) + part + b"\0"
    head = struct.pack(">iiiibii", -1, 500, 1, size_max, 0, 0, -1)
    return _frame(1, 12, head + topics + b"\1" + b"\1" + b"\0")


def check_produced(answer: bytes, topic: str, partitions: int) -> None:
    """Raise if an answer to `produce_frame` has an error in any partition."""
    start = 4 + 1 + 1 + 1 + len(topic) + 1
    for number in range(partitions):
        index, error = struct.unpack_from(">ih", answer, start + number * 33)
        if index != number or error:
            raise RuntimeError(f"partition {number} of {topic} answered with error {error}")


def check_fetched(answer: bytes, topic: str, size: int) -> None:
    """Raise if an answer to `fetch_frame` has an error, or is not one batch of `size` bytes."""
    (error,) = struct.unpack_from(">h", answer, 4 + 1 + 4)
    (part_error,) = struct.unpack_from(">h", answer, 4 + 1 + 4 + 6 + 1 + 1 + len(topic) + 1 + 4)
    if error or part_error or not size < len(answer) < size + 200:
        raise RuntimeError(f"fetch: errors {error} and {part_error}, {len(answer)} bytes")


class KafkaConnection:
    """One connection, on which bursts of requests are sent."""

    def __init__(self, port: int) -> None:
        self._socket = _connect(port)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def ask(self, frame: bytes) -> bytes:
        """Send one request, and return its answer without the size."""
        return next(self._burst([frame]))

    def send(
        self, frames: Iterator[bytes], count: int, *, burst: int, check: Callable[[bytes], None]
    ) -> None:
        """Send requests, a burst at a time: the next follows when all of it are answered.

        A sliding window would have the server gather now more and now fewer requests.
        """
        while count:
            size = min(burst, count)
            for answer in self._burst(list(itertools.islice(frames, size))):
                check(answer)
            count -= size

    def _burst(self, frames: Sequence[bytes]) -> Iterator[bytes]:
        self._socket.sendall(b"".join(frames))
        for _ in frames:
            size = int.from_bytes(self._exactly(4))
            yield self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectionError("the server closed the connection")
        return data


class HttpConnection:
    """One connection that is kept alive, with one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = _connect(port)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send JSON, and return the JSON that is answered."""
        return json.loads(self.send(http_request(method, path, body)))

    def send(self, request: bytes) -> bytes:
        """Send a request that was built before, and return the body of its answer."""
        self._socket.sendall(request)
        status = self._file.readline()
        length = 0
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = self._file.read(length)
        if not status.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(f"the server answered {status!r} {body[:1000]!r}")
        return body


def http_request(method: str, path: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


# The servers: a node, or a process that embeds a log; plain, under callgrind, or with the hook.


@dataclass(frozen=True, slots=True)
class Server:
    """A process that is measured."""

    process: subprocess.Popen[str]
    ports: Mapping[str, int]
    meter: Meter

    def cpu_seconds(self) -> float:
        """What the process has used of the processors, to the nanosecond; all its threads."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def read_when_quiet(self) -> tuple[float, float]:
        """Wait until the process has nothing to do; return the meter and the time."""
        deadline = time.monotonic() + QUIET_SECONDS_MAX
        while True:
            used = self.cpu_seconds()
            time.sleep(QUIET_SECONDS)
            if self.cpu_seconds() - used < QUIET_SECONDS * QUIET_SHARE:
                return self.meter(), time.monotonic()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server was busy for {QUIET_SECONDS_MAX:.0f} s")

    def tell(self, line: str) -> str:
        """Write a line to the process, and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def node_command(folder: Path) -> list[str]:
    return [
        *(str(Path(sys.executable).with_name("millstream")), "serve", "--data", str(folder)),
        *("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "error"),
    ]


def embedding_command(folder: Path) -> list[str]:
    return [str(Path(__file__).resolve()), "--embedded", str(folder)]


def run_embedded(folder: str) -> None:
    """Be the process that embeds a log: append as many records as each line of input says."""
    value = b"x" * RECORD_SIZE
    with millstream.open(folder) as store:
        log = store.log("paths")
        print("ready", flush=True)
        for line in sys.stdin:
            for _ in range(int(line)):
                log.append(value)
            print("done", flush=True)


@contextmanager
def running(command: Sequence[str], metric: str, folder: Path) -> Iterator[Server]:
    """Run a server until the block ends, with what its meter needs."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")
    }
    environment["PYTHONHASHSEED"] = "0"
    tool: list[str] = []
    if metric == INSTRUCTIONS:
        tool = [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--fair-sched=yes", "-q"),
            f"--callgrind-out-file={folder}/callgrind",
        ]
    if metric != CPU:
        hook = HOOK if metric == CALLS else NO_COLLECTION
        (folder / "sitecustomize.py").write_text(hook)
        environment["PYTHONPATH"] = str(folder)
    if metric == CALLS:
        environment[HOOK_VARIABLE] = str(folder / "calls")
    with ExitStack() as stack:
        errors = stack.enter_context((folder / "errors").open("w+"))
        process = subprocess.Popen(
            [*tool, sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=folder,
        )
        stack.callback(_stop, process)
        assert process.stdout is not None
        ports: dict[str, int] = {}
        for line in process.stdout:
            if line.strip() == "ready":
                break
            if found := re.match(r"(\w+) .*:(\d+)$", line):
                ports[found[1]] = int(found[2])
        else:
            raise RuntimeError(f"{command} did not start: {(folder / 'errors').read_text()}")
        yield Server(process, ports, _meter(metric, process.pid, folder))


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(WAIT_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _meter(metric: str, pid: int, folder: Path) -> Meter:
    if metric == CALLS:
        return lambda: _hook_count(folder / "calls")
    if metric == CPU:
        return lambda: time.clock_gettime(~pid << 3 | 2) * 1e6
    subprocess.run(["callgrind_control", "-i", "on", str(pid)], check=True, capture_output=True)
    dumps = itertools.count(1)
    total = 0

    def dump() -> float:
        """Have callgrind write what it counted since the last time, and add it up."""
        nonlocal total
        subprocess.run(["callgrind_control", "-d", str(pid)], check=True, capture_output=True)
        path = folder / f"callgrind.{next(dumps)}"
        found = re.search(r"^totals: (\d+)$", path.read_text(), re.MULTILINE)
        if found is None:
            raise RuntimeError(f"{path} has no totals")
        path.unlink()
        total += int(found[1])
        return total

    return dump


def _hook_count(path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_SECONDS_MAX)
        connection.connect(str(path))
        return int(connection.makefile("rb").read())


# The loads: each prepares what it needs for `total` requests, and returns what sends them.

Prepare = Callable[[Server, ExitStack, int], Drive]


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of request, sent again and again."""

    name: str
    what: str
    prepare: Prepare
    count: int
    """N, where nothing slows the server down: N and 2N requests are measured."""
    count_slow: int
    """N under callgrind, and with the hook."""
    is_embedded: bool = False


def _http(server: Server, stack: ExitStack) -> HttpConnection:
    connection = HttpConnection(server.ports["http"])
    stack.callback(connection.close)
    return connection


def _kafka(server: Server, stack: ExitStack) -> KafkaConnection:
    connection = KafkaConnection(server.ports["kafka"])
    stack.callback(connection.close)
    return connection


def _make_topic(server: Server, stack: ExitStack, name: str, partitions: int = 1) -> str:
    _http(server, stack).ask("PUT", f"/v1/topics/{name}", {"partitions": partitions})
    return name


def _produce(
    name: str, values: Sequence[bytes], *, acks: int, burst: int, partitions: int = 1
) -> Prepare:
    """Send the same request, pipelined."""

    def prepare(server: Server, stack: ExitStack, total: int) -> Drive:
        del total
        topic = _make_topic(server, stack, name, partitions)
        connection = _kafka(server, stack)
        frame = produce_frame(topic, [record_batch(values)] * partitions, acks=acks)

        def drive(count: int) -> None:
            connection.send(
                itertools.repeat(frame),
                count,
                burst=burst,
                check=lambda answer: check_produced(answer, topic, partitions),
            )

        return drive

    return prepare


def _produce_idempotent(server: Server, stack: ExitStack, total: int) -> Drive:
    topic = _make_topic(server, stack, "produce-idempotent")
    connection = _kafka(server, stack)
    # InitProducerId, version 4, without a transactional id.
    answer = connection.ask(_frame(22, 4, b"\0" + struct.pack(">iqh", 60_000, -1, -1) + b"\0"))
    error, producer, epoch = struct.unpack_from(">hqh", answer, 4 + 1 + 4)
    if error:
        raise RuntimeError(f"InitProducerId answered with error {error}")
    value = b"x" * RECORD_SIZE
    frames = iter(
        [
            produce_frame(
                topic,
                [record_batch([value], producer=(producer, epoch), sequence=sequence)],
                acks=-1,
            )
            for sequence in range(total)
        ]
    )

    def drive(count: int) -> None:
        connection.send(
            frames, count, burst=5, check=lambda answer: check_produced(answer, topic, 1)
        )

    return drive


def _fetch(server: Server, stack: ExitStack, total: int) -> Drive:
    del total
    topic = _make_topic(server, stack, "fetch-16k")
    connection = _kafka(server, stack)
    batch = record_batch([b"x" * BATCH_RECORD_SIZE] * BATCH_RECORDS)
    connection.send(
        itertools.repeat(produce_frame(topic, [batch], acks=-1)),
        FETCHED_BATCHES,
        burst=1,
        check=lambda answer: check_produced(answer, topic, 1),
    )
    frames = itertools.cycle(
        [
            fetch_frame(topic, number * BATCH_RECORDS, len(batch))
            for number in range(FETCHED_BATCHES)
        ]
    )

    def drive(count: int) -> None:
        connection.send(
            frames, count, burst=1, check=lambda answer: check_fetched(answer, topic, len(batch))
        )

    return drive


def _post(name: str, records: int, size: int) -> Prepare:
    def prepare(server: Server, stack: ExitStack, total: int) -> Drive:
        del total
        topic = _make_topic(server, stack, name)
        connection = _http(server, stack)
        body = {"records": [{"value": "x" * size}] * records}
        request = http_request("POST", f"/v1/topics/{topic}/records", body)

        def drive(count: int) -> None:
            for _ in range(count):
                connection.send(request)

        return drive

    return prepare


def _queue(server: Server, stack: ExitStack, total: int) -> Drive:
    connection = _http(server, stack)
    connection.ask("PUT", "/v1/queues/jobs", {})
    for start in range(0, total, 1000):
        records = [{"value": number} for number in range(start, min(start + 1000, total))]
        connection.ask("POST", "/v1/topics/jobs/records", {"records": records})
    claim = http_request("POST", "/v1/queues/jobs/claim", {"max": 1, "worker": "w1"})

    def drive(count: int) -> None:
        for _ in range(count):
            (job,) = json.loads(connection.send(claim))["jobs"]
            ack = http_request("POST", "/v1/queues/jobs/ack", {"receipts": [job["receipt"]]})
            if json.loads(connection.send(ack))["acked"] != 1:
                raise RuntimeError(f"the ack of {job} did not count")

    return drive


def _embedded(server: Server, stack: ExitStack, total: int) -> Drive:
    del stack, total

    def drive(count: int) -> None:
        if server.tell(str(count)) != "done":
            raise RuntimeError("the embedding process ended")

    return drive


_ONE = (b"x" * RECORD_SIZE,)
_MANY = (b"x" * BATCH_RECORD_SIZE,) * BATCH_RECORDS
LOADS = (
    Load(
        "produce-1",
        "Kafka produce, one record of 100 bytes, acks=1, 32 in flight",
        _produce("produce-1", _ONE, acks=1, burst=32),
        count=6400,
        count_slow=320,
    ),
    Load(
        "produce-all",
        "the same with acks=all",
        _produce("produce-all", _ONE, acks=-1, burst=32),
        count=6400,
        count_slow=320,
    ),
    Load(
        "produce-idempotent",
        "the same with producer id and sequences, acks=all, 5 in flight",
        _produce_idempotent,
        count=2000,
        count_slow=200,
    ),
    Load(
        "produce-16k",
        "Kafka produce, a batch of 16 KB, acks=all, one at a time",
        _produce("produce-16k", _MANY, acks=-1, burst=1),
        count=1500,
        count_slow=150,
    ),
    Load(
        "produce-4-partitions",
        "Kafka produce, one record of 100 bytes to each of 4 partitions, acks=1, 16 in flight",
        _produce("produce-4-partitions", _ONE, acks=1, burst=16, partitions=PARTITIONS),
        count=3200,
        count_slow=96,
    ),
    Load("fetch-16k", "Kafka fetch of 16 KB, one at a time", _fetch, count=2560, count_slow=128),
    Load(
        "http-post-1",
        "HTTP POST of one record of 100 bytes",
        _post("http-post-1", 1, RECORD_SIZE),
        count=1000,
        count_slow=100,
    ),
    Load(
        "http-post-100",
        "HTTP POST of 100 records of 1 KB",
        _post("http-post-100", 100, 1000),
        count=300,
        count_slow=20,
    ),
    Load(
        "queue-claim-ack",
        "claim and ack of one job over HTTP, as one",
        _queue,
        count=1000,
        count_slow=60,
    ),
    Load(
        "embedded-append",
        "append of one record of 100 bytes to an embedded log",
        _embedded,
        count=2000,
        count_slow=200,
        is_embedded=True,
    ),
)


# Measuring, and what is told of it.

Figures = dict[str, dict[str, list[float]]]
"""For each load and metric, the figure of each repetition."""


def measure(
    loads: Sequence[Load], metrics: Sequence[str], repeat: int, results: Path
) -> Iterator[Figures]:
    """Yield all figures up to now, after each repetition."""
    figures: Figures = {load.name: {metric: [] for metric in metrics} for load in loads}
    for number in range(repeat):
        for metric in metrics:
            began = time.monotonic()
            for embedded in (False, True):
                chosen = [load for load in loads if load.is_embedded == embedded]
                if chosen:
                    for name, figure in measure_in_one_server(chosen, metric, results):
                        figures[name][metric].append(figure)
            seconds = time.monotonic() - began
            print(f"{metric} {number + 1}/{repeat}: {seconds:.0f} s", file=sys.stderr)
        yield figures


def measure_in_one_server(
    loads: Sequence[Load], metric: str, results: Path, options: Sequence[str] = ()
) -> Iterator[tuple[str, float]]:
    """Yield the cost of a request of each load, in one process with more options."""
    with tempfile.TemporaryDirectory(dir=results, ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        data = folder / "data"
        command = embedding_command(data) if loads[0].is_embedded else node_command(data)
        with running([*command, *options], metric, folder) as server:
            used, began = server.read_when_quiet()
            time.sleep(IDLE_SECONDS)
            used_after, ended = server.read_when_quiet()
            idle_rate = (used_after - used) / (ended - began)
            for load in loads:
                yield load.name, _measure_load(load, server, metric, idle_rate)


def _measure_load(load: Load, server: Server, metric: str, idle_rate: float) -> float:
    count = load.count if metric == CPU else load.count_slow
    with ExitStack() as stack:
        drive = load.prepare(server, stack, count * 4)
        drive(count)
        read, at = server.read_when_quiet()
        windows = []
        for requests in (count, 2 * count):
            drive(requests)
            read_after, ended = server.read_when_quiet()
            windows.append(read_after - read - idle_rate * (ended - at))
            read, at = read_after, ended
    once, twice = windows
    if metric != CPU and abs(twice / (2 * once) - 1) > DISAGREEMENT_MAX:
        print(
            f"{load.name}: {metric} by request are {once / count:,.1f} over N requests,"
            f" and {twice / (2 * count):,.1f} over 2N",
            file=sys.stderr,
        )
    # A difference of two noisy times is noisier than their sum, and N is large there.
    return (once + twice) / (3 * count) if metric == CPU else (twice - once) / count


def facts() -> dict[str, str]:
    """Say what was measured, and where."""
    package = Path(millstream.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    git = ["git", "-C", str(package), "describe", "--always", "--dirty"]
    valgrind = ["valgrind", "--version"]
    return {
        "package": str(package),
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "digest": digest.hexdigest()[:12],
        "script": hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12],
        "Python": platform.python_version(),
        "valgrind": subprocess.run(
            valgrind, capture_output=True, text=True, check=False
        ).stdout.strip(),
        "load at the start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def spread(values: Sequence[float]) -> float:
    """Return how far apart the extremes are, as a share of the median."""
    return (max(values) - min(values)) / statistics.median(values)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Lay rows out, the first column to the left and all others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def results_table(figures: Figures, metrics: Sequence[str]) -> str:
    rows = [["load", "n", *(cell for metric in metrics for cell in (metric, "spread"))]]
    for name, by_metric in figures.items():
        row = [name, str(len(by_metric[metrics[0]]))]
        for metric in metrics:
            values = by_metric[metric]
            row += [_figure(statistics.median(values)), f"{spread(values):.1%}"]
        rows.append(row)
    return table(rows)


def comparison(before: Figures, after: Figures) -> str:
    """Compare medians; a star marks a ratio where no repetition of one is among the other's."""
    rows = [["load", "metric", "before", "after", "ratio", "", "spread before", "spread after"]]
    for name, by_metric in before.items():
        for metric, old in by_metric.items():
            new = after.get(name, {}).get(metric)
            if not new:
                continue
            ratio = statistics.median(new) / statistics.median(old)
            apart = max(old) < min(new) or max(new) < min(old)
            rows.append(
                [
                    *(name, metric, _figure(statistics.median(old))),
                    *(_figure(statistics.median(new)), f"{ratio:.3f}", "*" if apart else ""),
                    *(f"{spread(old):.1%}", f"{spread(new):.1%}"),
                ]
            )
    return table(rows)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def main() -> None:
    arguments = _arguments()
    if arguments.embedded:
        run_embedded(arguments.embedded)
        return
    if arguments.compare:
        before, after = (json.loads(path.read_text()) for path in arguments.compare)
        for side, stored in (("before", before), ("after", after)):
            print(
                f"{side}: {', '.join(f'{key} {value}' for key, value in stored['facts'].items())}"
            )
        if before["facts"]["script"] != after["facts"]["script"]:
            print("the two were measured by different versions of this script")
        print(f"\n{comparison(before['figures'], after['figures'])}")
        print("\n*: the repetitions of the two do not overlap")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    loads = [load for load in LOADS if not arguments.load or load.name in arguments.load]
    metrics = [metric for metric in METRICS if not arguments.metric or metric in arguments.metric]
    arguments.results.mkdir(parents=True, exist_ok=True)
    about = facts()
    figures: Figures = {}
    for figures in measure(loads, metrics, arguments.repeat, arguments.results):
        if arguments.json:  # After each repetition: a run that is ended early is not lost.
            arguments.json.write_text(json.dumps({"facts": about, "figures": figures}, indent=1))
    print("\n".join(f"{key}: {value}" for key, value in about.items()))
    print(f"\n{results_table(figures, metrics)}")
    print("\nPer request: median of the repetitions, and (largest - smallest) / median.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog="Loads: " + "; ".join(f"{load.name}: {load.what}" for load in LOADS) + ".",
    )
    names = [load.name for load in LOADS]
    parser.add_argument("--load", action="append", choices=names, metavar="NAME")
    parser.add_argument("--metric", action="append", choices=METRICS, help="default: all")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: %(default)s")
    parser.add_argument("--embedded", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
