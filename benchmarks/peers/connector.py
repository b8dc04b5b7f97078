"""Spark's own connector for Kafka: jars that a session is started with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from measure.peers import PeerMissing

from peers.maven import jars, kept_jars

GROUP = "org.apache.spark"
ARTIFACT = "spark-sql-kafka-0-10_2.13"


@dataclass(frozen=True, slots=True)
class Connector:
    """No server: it runs in the process of Spark, whose CPU time is not counted."""

    version: str
    port: int = 0

    def cpu_seconds(self) -> float:
        """Nothing of its own."""
        return 0.0


def bring_connector() -> None:
    """Have the jars there before a session is started, which cannot take them later."""
    jars(GROUP, ARTIFACT, _spark_version())


def connector_jars() -> list[Path]:
    """Return the settings of a session for the connector; none if it is not installed."""
    # Spark has the rest itself, and must not find it twice.
    names = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
    found = kept_jars(ARTIFACT, _spark_version())
    return [jar for jar in found if jar.name.startswith(names)]


@contextmanager
def running_connector(_: Path) -> Iterator[Connector]:
    """Say whether there is one. The session with it is the subject's."""
    found = connector_jars()
    if not found:
        bring_connector()  # Which says why there is none.
        raise PeerMissing("Spark's connector came after the session had started; run again")
    names = [jar.stem for jar in found if jar.name.startswith(ARTIFACT)]
    yield Connector(f"{', '.join(names)}, with Spark {_spark_version()}")


def _spark_version() -> str:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        raise PeerMissing("PySpark is not installed") from None
