"""Spark's own declarative pipelines read topics."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millstream.testing.broker import running_broker

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"

for name in ("grpc", "grpc_status", "google.rpc", "yaml", "zstandard"):
    pytest.importorskip(name, reason="needs pyspark[pipelines]")


@pytest.mark.timeout(600)
def test_the_declarative_example_reads_the_topic(tmp_path):
    folder = tmp_path / "declarative"
    shutil.copytree(EXAMPLES / "declarative", folder)
    with running_broker(tmp_path / "node") as node:
        runpy.run_path(str(EXAMPLES / "sessions" / "produce.py"))["main"](node.bootstrap)
        spec = folder / "spark-pipeline.yml"
        text = spec.read_text().replace("127.0.0.1:9092", node.bootstrap)
        spec.write_text(text.replace("file:///tmp/millstream-declarative", f"file://{tmp_path}/s"))
        run_spark_pipelines(spec)
    found = pq.read_table(folder / "spark-warehouse" / "clicks_by_page").to_pylist()
    assert {row["page"]: row["count"] for row in found} == {"/": 13, "/docs": 12, "/pricing": 12}


def run_spark_pipelines(spec: Path) -> None:
    """Run Spark's command with the Python and the modules of this test."""
    result = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "run", "--spec", str(spec)],
        cwd=spec.parent,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stderr
