"""An etcd with one member on this machine, for the nodes of a local cluster."""

from __future__ import annotations

import http.client
import os
import platform
import shutil
import time
from pathlib import Path

from millstream.cli.processes.child_process import POLL_SECONDS, ChildProcess
from millstream.errors import InvalidConfig

START_SECONDS_MAX = 60.0
HEALTH_SECONDS_MAX = 5.0

MISSING = (
    "etcd is not installed: install Debian's packages with `apt-get install --no-install-recommends"
    " etcd-server etcd-client`, or put an `etcd` of version 3.4 or later into the PATH"
)


def find_etcd() -> str:
    """Return the path of etcd; raise `InvalidConfig` if it is not installed."""
    found = shutil.which("etcd")
    if found is None:
        raise InvalidConfig(MISSING)
    return found


def start_etcd(
    data: Path, log: Path | None, *, port: int, peer_port: int, log_level: str = "warn"
) -> ChildProcess:
    """Start etcd with its data in `data`; it is ready after `wait_until_healthy`.

    Without a log file, the caller reads its standard error.
    """
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    command = [
        find_etcd(),
        "--name=dev",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=dev={peer}",
        # Old revisions fill the database up to its quota, and then nothing can be changed.
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--logger=zap",
        f"--log-level={log_level}",
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
    if platform.machine() == "aarch64":
        environment["ETCD_UNSUPPORTED_ARCH"] = "arm64"  # Version 3.4 asks for this.
    return ChildProcess("etcd", command, log, environment=environment)


def wait_until_healthy(etcd: ChildProcess, port: int) -> None:
    """Wait until etcd answers; raise `InvalidConfig` if it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not _is_healthy(port):
        if not etcd.is_running:
            raise InvalidConfig(f"etcd did not start: {etcd.last_words()}")
        if time.monotonic() > deadline:
            raise InvalidConfig(
                f"etcd is not ready after {START_SECONDS_MAX:g} s: {etcd.last_words()}"
            )
        time.sleep(POLL_SECONDS)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTH_SECONDS_MAX)
    try:
        connection.request("GET", "/health")
        return b'"true"' in connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
