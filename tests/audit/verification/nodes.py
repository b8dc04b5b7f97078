"""Helpers for verification tests: clients that record acknowledgements, and file damage."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from click.testing import CliRunner
from confluent_kafka import Producer

import millstream
from millstream import AcknowledgementFile, LogConfig
from millstream.cli.main import main
from millstream.cli.segments.offline_run import OfflineRun
from millstream.records.batch import split
from millstream.testing.broker import RunningBroker, running_broker

QUIET = {"log_level": 0, "error_cb": lambda _: None}
TOPIC = "orders"


class Stage:
    """A data directory, an acknowledgement file, and nodes that are started on the directory."""

    def __init__(self, path: Path) -> None:
        self.data = path / "data"
        self.acknowledged = AcknowledgementFile(path / "acknowledged")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.acknowledged.close()

    @contextlib.contextmanager
    def node(self, *, segment_bytes_max: int = 16 * 1024) -> Iterator[RunningBroker]:
        log = LogConfig(segment_bytes_max=segment_bytes_max)
        with running_broker(self.data, log=log) as broker:
            yield broker

    def fill(self, broker: RunningBroker, count: int = 300, *, keys: int = 10_000) -> None:
        """Append records in batches of one, and record their acknowledgements with the topic id."""
        with millstream.Client(broker.url, acknowledgements=self.acknowledged) as client:
            for number in range(count):
                value = {"number": number, "text": "." * 100}
                client.append(TOPIC, value, key=f"key-{number % keys}", headers={"h": "1"})

    def create(self, broker: RunningBroker, **settings: Any) -> None:
        with millstream.Client(broker.url) as client:
            client.create_topic(TOPIC, partitions=1, **settings)

    def producer(self, broker: RunningBroker, **settings: Any) -> Producer:
        return Producer(QUIET | {"bootstrap.servers": broker.bootstrap, **settings})

    def clean(self) -> None:
        """Compact and reclaim deleted records. No node may be running."""
        asyncio.run(OfflineRun(str(self.data), None, progress=lambda _done, _total: None).run())

    def verify(self, broker: RunningBroker | None, *options: str) -> Verified:
        """Verify the running node if one is given, otherwise the directory."""
        self.acknowledged.flush()
        place = ["--bootstrap", broker.bootstrap] if broker else ["--data", str(self.data)]
        arguments = ["verify", *place, "--acknowledged", self.acknowledged.path, "--json"]
        arguments += ["--timeout", "2", *options]
        return Verified(CliRunner().invoke(main, arguments))

    # Damaging files.

    def logs(self, suffix: str = "log") -> list[Path]:
        return sorted((self.data / "topics" / TOPIC / "0").glob(f"*.{suffix}"))

    def unattest(self, log: Path) -> None:
        """Remove seal, index and checkpoint of the last segment, as if it was never sealed."""
        for suffix in ("seal", "index"):
            log.with_suffix(f".{suffix}").unlink(missing_ok=True)
        (log.parent / "checkpoint").unlink(missing_ok=True)

    def replace(self, path: Path, change: Callable[[bytes], bytes], *, of: int) -> None:
        """Change the batch that contains an offset in a log file, without any further check."""
        batches = [
            change(bytes(data)) if header.base_offset <= of <= header.last_offset else bytes(data)
            for header, data in split(path.read_bytes())
        ]
        path.write_bytes(b"".join(batches))


class Verified:
    """The parsed output of `millstream verify --json`."""

    def __init__(self, result: Any) -> None:
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        assert result.exit_code in (0, 1), result.output
        assert result.stdout, result.output
        self.exit_code = result.exit_code
        self.report: Mapping[str, Any] = json.loads(result.stdout)
        assert self.report["is_sound"] == (result.exit_code == 0)

    @property
    def outcomes(self) -> dict[str, int]:
        found = self.report["acknowledged"]
        return {name: count for name, count in found.items() if count and name != "total"}

    @property
    def damage(self) -> list[str]:
        return [
            f"{found['path']}: {found['what']}"
            for found in self.report["findings"]
            if found["is_damage"]
        ]
