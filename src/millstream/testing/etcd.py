"""A real etcd on free ports of this machine, for tests.

    with running_etcd(tmp_path) as etcd:
        metadata = await EtcdMetadata.open(etcd.endpoints, "test")

    with running_etcd(tmp_path, members=3) as etcd:
        etcd.members[0].kill()

Data and logs are below the directory; etcd syncs its writes as in production. It must be installed:
`etcd` of Debian's package `etcd-server`, or any version from 3.4 on, in the `PATH`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import shutil
import signal
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from millstream.testing.network_host import LOOPBACK, NetworkHost

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
DATA_BYTES_MAX = 256 * 1024 * 1024
"""etcd reserves as much address space; by default ten gigabytes."""

ATTEMPTS = 3
"""A port that was free may be taken before etcd listens on it; then other ports are tried."""

_POLL_SECONDS = 0.05
_HEALTH_SECONDS_MAX = 5.0


class EtcdTls(NamedTuple):
    """Files (PEM) with which members listen for clients."""

    ca_file: str
    cert_file: str
    key_file: str
    is_client_checked: bool = False
    """Whether clients need a certificate of the same authority."""


class EtcdFailed(Exception):
    """etcd is not installed, or did not start."""


class RunningEtcdMember:
    """One member of etcd, which can be killed and started again with its data."""

    def __init__(
        self,
        name: str,
        directory: Path,
        ports: tuple[int, int],
        tls: EtcdTls | None,
        host: NetworkHost = LOOPBACK,
    ) -> None:
        self.name = name
        self.data = directory / name
        """Its data directory."""
        self.log = directory / f"{name}.log"
        scheme = "http" if tls is None else "https"
        self.client_url = f"{scheme}://{host.address}:{ports[0]}"
        self.peer_url = f"http://{host.address}:{ports[1]}"
        self._host = host
        self._port = ports[0]
        self._tls = tls
        self._options: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, options: Sequence[str] | None = None) -> None:
        """Start the process; it is ready when `is_healthy`."""
        self._options = self._options if options is None else options
        executable = shutil.which("etcd")
        if executable is None:
            raise EtcdFailed(
                "etcd is not installed: run `make etcd`, or install Debian's etcd-server"
            )
        command = [
            *self._host.command,
            executable,
            f"--name={self.name}",
            f"--data-dir={self.data}",
            f"--listen-client-urls={self.client_url}",
            f"--advertise-client-urls={self.client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            *self._tls_options(),
            *self._options,
        ]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        if platform.machine() == "aarch64":
            environment["ETCD_UNSUPPORTED_ARCH"] = "arm64"  # Version 3.4 asks for this.
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command.
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def _tls_options(self) -> Sequence[str]:
        if self._tls is None:
            return ()
        options = [f"--cert-file={self._tls.cert_file}", f"--key-file={self._tls.key_file}"]
        if self._tls.is_client_checked:
            options += ["--client-cert-auth", f"--trusted-ca-file={self._tls.ca_file}"]
        return options

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it cleanly."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stop it from running, while its connections stay open, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self.is_running:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def is_healthy(self) -> bool:
        """Return whether it has a leader and answers."""
        try:
            return bool(self.request("GET", "/health").get("health") == "true")
        except (OSError, ValueError, http.client.HTTPException):
            return False

    def request(
        self, method: str, path: str, message: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a request to the gateway, and return its response."""
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(
                self._host.address, self._port, timeout=_HEALTH_SECONDS_MAX
            )
        else:
            context = ssl.create_default_context(cafile=self._tls.ca_file)
            if self._tls.is_client_checked:
                context.load_cert_chain(self._tls.cert_file, self._tls.key_file)
            connection = http.client.HTTPSConnection(
                self._host.address, self._port, timeout=_HEALTH_SECONDS_MAX, context=context
            )
        try:
            connection.request(method, path, None if message is None else json.dumps(message))
            response: dict[str, Any] = json.loads(connection.getresponse().read())
            return response
        finally:
            connection.close()


class RunningEtcd:
    """All members of an etcd."""

    def __init__(
        self,
        directory: Path,
        *,
        members: int,
        tls: EtcdTls | None,
        hosts: Sequence[NetworkHost] = (),
    ) -> None:
        ports = free_ports(2 * members)
        self.members = [
            RunningEtcdMember(
                f"m{number}",
                directory,
                (ports[2 * number], ports[2 * number + 1]),
                tls,
                hosts[number] if hosts else LOOPBACK,
            )
            for number in range(members)
        ]

    @property
    def endpoints(self) -> tuple[str, ...]:
        """URLs for clients, of all members."""
        return tuple(member.client_url for member in self.members)

    def start(self, options: Sequence[str] = ()) -> None:
        """Start all members, and wait until they are ready."""
        cluster = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        fixed = [
            f"--initial-cluster={cluster}",
            f"--initial-cluster-token={uuid.uuid4().hex}",
            f"--quota-backend-bytes={DATA_BYTES_MAX}",
            "--logger=zap",
            "--log-level=warn",
            *options,
        ]
        for member in self.members:
            member.start(fixed)
        self.wait_until_healthy()

    def wait_until_healthy(self) -> None:
        """Wait until all members that run answer."""
        deadline = time.monotonic() + START_SECONDS_MAX
        for member in self.members:
            while member.is_running and not member.is_healthy():
                if time.monotonic() > deadline:
                    raise EtcdFailed(f"{member.name} is not ready: see {member.log}")
                time.sleep(_POLL_SECONDS)
            if not member.is_running:
                raise EtcdFailed(f"{member.name} has ended: {member.log.read_text()[-1000:]}")

    def stop(self) -> None:
        """Stop all members."""
        for member in self.members:
            member.kill()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that nobody listens on."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(int(listener.getsockname()[1]))
        return ports


@contextlib.contextmanager
def running_etcd(
    directory: str | PathLike[str],
    *,
    members: int = 1,
    tls: EtcdTls | None = None,
    options: Sequence[str] = (),
    hosts: Sequence[NetworkHost] = (),
) -> Iterator[RunningEtcd]:
    """Run etcd with its data below `directory` for the duration of the block.

    `hosts` is where each member listens; by default all do on the loopback address.
    """
    for attempt in range(1, ATTEMPTS + 1):
        place = Path(directory) / f"etcd-{attempt}"
        place.mkdir(parents=True)
        etcd = RunningEtcd(place, members=members, tls=tls, hosts=hosts)
        try:
            etcd.start(options)
        except EtcdFailed:
            etcd.stop()
            if attempt == ATTEMPTS or shutil.which("etcd") is None:
                raise
        else:
            break
    try:
        yield etcd
    finally:
        etcd.stop()
