"""The examples work with the data that they produce."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import runpy
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from millstream.spark.pipelines import load
from millstream.spark.pipelines.run.runner import run
from millstream.testing.broker import running_broker
from tests.spark.topics import consume

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"


@pytest.fixture
def own_node(tmp_path):
    """A separate node, because the examples use fixed topic names."""
    with running_broker(tmp_path / "node") as broker:
        yield broker


@pytest.fixture
def example(spark, own_node, tmp_path):
    """Produces the data of an example and runs it in a copy of its folder."""

    def run_example(name: str, *, rounds: int = 1) -> Path:
        folder = tmp_path / name
        shutil.copytree(EXAMPLES / name, folder)
        (file,) = folder.glob("pipeline.*")
        pipeline = dataclasses.replace(load(str(file)), bootstrap=own_node.bootstrap)
        for _ in range(rounds):
            runpy.run_path(str(folder / "produce.py"))["main"](own_node.bootstrap)
            run(spark, pipeline, observe=lambda _: None, stop=threading.Event(), is_once=True)
        return folder

    return run_example


def test_clicks_become_sessions(example, own_node):
    example("sessions")
    found = Counter(
        (one.key().decode(), json.loads(one.value())["clicks"])
        for one in consume(own_node, "sessions")
    )
    assert found == {("ada", 3): 4, ("grace", 3): 4, ("edsger", 3): 4}


def test_orders_know_their_customers(example, own_node):
    example("orders")
    orders = [json.loads(one.value()) for one in consume(own_node, "known-orders")]
    assert sorted(one["order_id"] for one in orders) == list(range(30))
    countries = {one["customer_id"]: (one.get("name"), one["country"]) for one in orders}
    assert countries == {
        1: ("Ada", "UK"),
        2: ("Grace", "US"),
        3: ("Edsger", "US"),
        4: (None, "unknown"),
    }
    latest = {one.key(): json.loads(one.value()) for one in consume(own_node, "orders-by-country")}
    assert {key: one["orders"] for key, one in latest.items()} == {
        b"UK": 8,
        b"US": 15,
        b"unknown": 7,
    }
    assert sum(one["amount"] for one in latest.values()) == sum(n * 1.5 for n in range(30))
    dead = Counter(one.value() for one in consume(own_node, "orders-dead"))
    assert dead.keys() == {b'{"order_id": "seven"', b"no order at all"}


def test_a_log_of_changes_becomes_a_table(example, spark, own_node):
    folder = example("changelog", rounds=2)
    module = load_module(folder / "pipeline.py")
    assert {row.id: (row.name, row.city) for row in module.read_table(spark).collect()} == {
        "1": ("Ada", "London"),
        "3": ("Edsger", "Austin"),
        "4": ("Barbara", "Los Angeles"),
    }
    assert module.current()["batch"] == 1
    # A batch that is already current, as after a crash between the table and the checkpoint.
    commits = folder / "millstream-pipelines" / "changelog" / "customers" / "commits"
    for name in ("1", ".1.crc"):
        (commits / name).unlink()
    before = sorted((folder / "customers" / "batch-1").iterdir())
    pipeline = dataclasses.replace(load(str(folder / "pipeline.py")), bootstrap=own_node.bootstrap)
    run(spark, pipeline, observe=lambda _: None, stop=threading.Event(), is_once=True)
    assert sorted((folder / "customers" / "batch-1").iterdir()) == before


def load_module(path: Path):
    spec = importlib.util.spec_from_file_location("changelog_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
