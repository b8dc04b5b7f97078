"""Spark session for commands."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")

_COMMON = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # Commands show their own progress.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",  # Off by default.
}

_STREAM_VARIABLES = (
    "SPARK_LOCAL_DIRS",
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_PYTHON_RUNTIME",
)
"""Variables that Spark sets for the Python process of each stream."""

logger = logging.getLogger(__name__)

_LOCAL = {
    # The executors are threads of the driver, so nothing connects to it from outside.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def spark_session(
    app_name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session that has `format("millstream")`. The caller stops it.

    `conf` overrides the defaults: no web interface, only errors are logged, Arrow between Spark and
    Python, filters pushed down to Python sources; with a local master also the loopback address,
    and this Python for the workers. With any other master, the workers' Python is configured in the
    cluster (`PYSPARK_PYTHON`).

    If this process already has a session, it is returned, with those settings changed that can be
    changed at run time; its master stays. Raises `SparkMissing` if PySpark or Java is not
    installed.
    """
    try:
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - optional, and slow to import.
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SparkMissing(
            f"PySpark is not installed (no module {error.name!r}): install millstream[spark]"
        ) from error
    is_local = master.startswith("local")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in {**_COMMON, **(_LOCAL if is_local else {}), **(conf or {})}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise SparkMissing(
            "Spark did not start: it requires Java 17 or newer, in JAVA_HOME or on the PATH"
        ) from error
    _register(spark)
    return spark


@contextmanager
def running_session(
    app_name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session from `spark_session`, and stop it at the end unless it existed before."""
    was_running = _is_running()
    spark = spark_session(app_name, master, conf)
    try:
        yield spark
    finally:
        if not was_running:
            spark.stop()


def _is_running() -> bool:
    """Whether any thread of this process has a Spark context."""
    if sys.modules.get("pyspark") is None:
        return False
    from pyspark import SparkContext  # noqa: PLC0415

    return SparkContext._active_spark_context is not None  # noqa: SLF001 - there is no public way to ask.


def prepare_streams(spark: SparkSession) -> None:
    """Make it safe to start several streams at the same time in a session.

    All streams share the map of environment variables of the data source, and Spark adds these to
    it, without a lock, when a stream starts its Python process. Two at once can break the map (its
    size is not that of its content), and from then on no task can be serialized. With the names in
    the map, they only replace values.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - requires Spark.

    try:
        sources = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001
        variables = sources.lookupDataSource("millstream").dataSourceCls().envVars()
        for name in _STREAM_VARIABLES:
            variables.putIfAbsent(name, "")
    except Py4JError as error:
        logger.warning("streams that start at the same time may fail: %s", error)


def _register(spark: SparkSession) -> None:
    """Register `format("millstream")` if Spark would not find it.

    Spark finds it if the module `pyspark_millstream` can be imported, which an installation
    provides.
    """
    if importlib.util.find_spec("pyspark_millstream") is None:
        from millstream.spark.source import MillstreamDataSource  # noqa: PLC0415 - requires Spark.

        spark.dataSource.register(MillstreamDataSource)
