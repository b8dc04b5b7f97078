"""A node of a test cluster: a process that can be killed, paused, stopped and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream.testing.cluster.memory_limit import MemoryGroup
from millstream.testing.cluster.node_faults import APPLIED, NO_FAULTS, NodeFaults, encode_faults
from millstream.testing.network_host import LOOPBACK, NetworkHost

STOP_SECONDS_MAX = 60.0
LOG_SIZE_SHOWN = 3000
PORTS_PER_NODE = 3
"""Kafka, HTTP and peers."""


_SERVE = "millstream.cli.main"


class NodeFailed(Exception):
    """A node did not start, ended by itself, or did not stop cleanly."""


class RunningNode:
    """A node of a cluster. It keeps its ports and its data when it is started again."""

    def __init__(
        self,
        node_id: int,
        directory: Path,
        ports: Sequence[int],
        settings: Mapping[str, str],
        *,
        advertised_ports: Sequence[int] = (),
        has_faults: bool = False,
        host: NetworkHost = LOOPBACK,
        memory: MemoryGroup | None = None,
        source: Path | None = None,
    ) -> None:
        """`settings` are by key, such as `cluster.rack`, as after `millstream serve --set`.

        With `advertised_ports`, clients and other nodes connect there. With `has_faults`, disk and
        clock of the node can be disturbed. `host` is where it listens, and `memory` the group that
        limits its memory. `source` is the directory of the package that it runs, if it is another
        one than this.
        """
        self.node_id = node_id
        self.data = directory / f"node-{node_id}"
        """Its data directory."""
        self.log = directory / f"node-{node_id}.log"
        """What it writes to standard error."""
        self.memory = memory
        """The group that can limit its memory, if it has one."""
        self._host = host
        self._listeners = [f"{host.address}:{port}" for port in ports]
        self._advertised = [f"{host.address}:{port}" for port in advertised_ports or ports]
        self.bootstrap = self._advertised[0]
        """Address for Kafka clients."""
        self.settings = dict(settings)
        """Settings for the next start."""
        self.has_faults = has_faults
        """Whether disk and clock can be disturbed."""
        self.source = source
        """Directory of the package `millstream` for the next start; None for this one."""
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """URL for HTTP clients."""
        return f"http://{self._advertised[1]}"

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the node, and return when it serves clients."""
        assert not self.is_running, f"node {self.node_id} runs"
        if self._process is not None:  # It ended by itself.
            self._take()
        kafka, http, peer = self._listeners
        module = "millstream.testing.cluster.node_process" if self.has_faults else _SERVE
        command = [
            *self._host.command,
            *(sys.executable, "-m", module, "serve"),
            f"--data={self.data}",
            f"--node-id={self.node_id}",
            f"--kafka={kafka}",
            f"--http={http}",
            f"--peer={peer}",
            *(f"--set={key}={value}" for key, value in self.settings.items()),
        ]
        if self._host != LOOPBACK:
            command.append("--insecure")  # Only this machine reaches a namespace of the test.
        if self._advertised != self._listeners:
            kafka, _, peer = self._advertised
            command += [f"--advertise={kafka}", f"--advertise-peer={peer}"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM_")}
        if self.source is not None:
            environment["PYTHONPATH"] = str(self.source)
        with self.log.open("a") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own command.
                command,
                stdin=subprocess.PIPE if self.has_faults else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self.log.parent,  # Without a configuration file.
                env=environment,
            )
        if self.memory is not None:
            self.memory.add(self._process.pid)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                return
        self.close()
        raise NodeFailed(f"node {self.node_id} did not start:\n{self.last_words()}")

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text()[-LOG_SIZE_SHOWN:]

    def kill(self) -> None:
        """Kill it, as a crash would (`kill -9`). Raises `NodeFailed` if it had ended before."""
        process = self._take()
        process.kill()
        if process.wait() != -signal.SIGKILL:
            raise NodeFailed(f"node {self.node_id} had ended by itself:\n{self.last_words()}")

    def stop(self) -> None:
        """Stop it cleanly. Raises `NodeFailed` if it does not end, or with an error."""
        process = self._take()
        process.terminate()
        try:
            status = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise NodeFailed(f"node {self.node_id} does not stop:\n{self.last_words()}") from None
        if status != 0:
            message = f"node {self.node_id} ended with status {status}"
            raise NodeFailed(f"{message}:\n{self.last_words()}")

    def pause(self) -> None:
        """Stop it from running (SIGSTOP), while its connections stay open, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def disturb(self, faults: NodeFaults = NO_FAULTS) -> None:
        """Disturb disk and clock of the node from now on; without an argument, end that.

        A node that is started has no faults. Does nothing if the node has ended.
        """
        process = self._process
        assert process is not None, "it was started"
        assert process.stdin is not None, "the cluster was made with `has_faults`"
        assert process.stdout is not None
        try:
            process.stdin.write(f"{encode_faults(faults)}\n")
            process.stdin.flush()
        except BrokenPipeError:
            return
        for line in process.stdout:
            if line == f"{APPLIED}\n":
                return

    def starve(self, spare_bytes: int) -> None:
        """Let the node allocate only so much more, until it is killed or `heal` of the cluster.

        Without the rights to limit memory, it is killed at once, as the kernel would do.
        """
        if self.memory is None or not self.memory.limit(self.memory.allocated() + spare_bytes):
            self.kill()

    def close(self) -> None:
        """End the process if there is one, whatever state a test left it in."""
        if self._process is not None:
            process = self._take()
            process.kill()
            process.wait()

    def _take(self) -> subprocess.Popen[str]:
        process, self._process = self._process, None
        assert process is not None, "it was started"
        assert process.stdout is not None
        process.stdout.close()
        if process.stdin is not None:
            process.stdin.close()
        return process
