"""The Spark session that commands run in."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = Path(__file__).with_name("log4j2.properties")

_COMMON = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # Commands show their own.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()}",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

_LOCAL = {
    # Nothing outside this machine has to reach a driver whose executors are its own threads.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def spark_session(
    app_name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session that knows `format("millstream")`; whoever asked for it stops it.

    `conf` wins over what is set here: no web interface, only errors are logged, Arrow between Spark
    and Python; with a local master also the loopback address, and this very Python for the workers.
    With any other master the workers' Python is the cluster's matter (`PYSPARK_PYTHON`).

    Where this process has a session already, that one is returned, with those settings changed that
    can be changed while it runs; its master stays. Raises `SparkMissing` where PySpark is not
    installed, or no Java to run it on.
    """
    try:
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - an extra, and slow.
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SparkMissing(
            f"this needs PySpark, found no module {error.name!r}: pip install millstream[spark]"
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
            "Spark did not start: it needs Java 17 or newer, found by JAVA_HOME or on the PATH"
        ) from error
    _register(spark)
    return spark


@contextmanager
def running_session(
    app_name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Give a session as `spark_session` does, and stop it at the end unless it was there before."""
    was_running = _is_running()
    spark = spark_session(app_name, master, conf)
    try:
        yield spark
    finally:
        if not was_running:
            spark.stop()


def _is_running() -> bool:
    """Whether this process has Spark running, in whichever of its threads."""
    if sys.modules.get("pyspark") is None:
        return False
    from pyspark import SparkContext  # noqa: PLC0415

    return SparkContext._active_spark_context is not None  # noqa: SLF001 - nobody else knows.


def _register(spark: SparkSession) -> None:
    """Make `format("millstream")` known where Spark would not find it by itself.

    It does where the module `pyspark_millstream` can be imported, as it can after an installation.
    """
    if importlib.util.find_spec("pyspark_millstream") is None:
        from millstream.spark.source import MillstreamDataSource  # noqa: PLC0415 - needs Spark.

        spark.dataSource.register(MillstreamDataSource)
