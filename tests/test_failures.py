"""The catalogue of failures names what there is: tests, codes of health, alerts, metrics."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from millstream.broker.problems import ProblemCode
from millstream.observe.metrics.node_metrics import SECTIONS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/operating/failures.md"
HEAD = ("what fails", "how it shows", "how it heals", "what is lost", "test")
METRICS = {metric.name for section in SECTIONS for metric in section.metrics}
CODES = {code.value for code in ProblemCode}
OTHER_CODES = {"leader_not_available", "outcome_unknown"}
"""Codes of HTTP answers."""


class Failure(NamedTuple):
    """One row of the catalogue."""

    what: str
    shows: str
    heals: str
    lost: str
    test: str


def rows() -> list[tuple[str, ...]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [row for row in cells if set("".join(row)) != {"-"}]


FAILURES = [Failure(*row) for row in rows() if row != HEAD and len(row) == len(HEAD)]


def alerts() -> set[str]:
    content = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    return {rule["alert"] for group in content["groups"] for rule in group["rules"]}


@cache
def functions_of(path: str) -> set[str]:
    """Return the names of the test functions of a file, as pytest would collect them."""
    tree = ast.parse((ROOT / path).read_text())
    return {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_table_has_the_same_columns_and_every_row_all_of_them():
    assert rows().count(HEAD) == 4
    assert len(FAILURES) == len(rows()) - 4 >= 40
    assert all(all(failure) for failure in FAILURES)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.what)
def test_the_test_of_a_failure_exists(failure: Failure):
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", failure.test)
    assert named is not None, failure.test
    assert (ROOT / named[1]).exists()
    assert named[2] in functions_of(named[1])


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.what)
def test_what_shows_a_failure_exists(failure: Failure):
    for name in re.findall(r"`([^`]+)`", failure.shows):
        if name.startswith("Millstream"):
            assert name in alerts()
        elif name.startswith("millstream_"):
            assert name in METRICS
        elif re.fullmatch(r"[a-z]+(_[a-z]+)+", name):
            assert name in CODES | OTHER_CODES


def test_no_two_rows_are_the_same():
    assert len({failure.what for failure in FAILURES}) >= len(FAILURES) - 1
    assert len({failure.test for failure in FAILURES}) == len(FAILURES)


@pytest.mark.parametrize(
    "code", ["quorum_lost", "isr_small", "replica_stopped", "replica_behind", "resyncing"]
)
def test_every_problem_of_a_cluster_is_in_the_catalogue(code: str):
    assert code in CODES
    assert any(f"`{code}`" in failure.shows for failure in FAILURES)
