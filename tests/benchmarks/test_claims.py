"""Every figure in the documentation is measured by an experiment."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from run import SUBJECTS

ROOT = Path(__file__).parents[2]
PERFORMANCE = ROOT / "docs" / "internals" / "performance.md"
HERE = {PERFORMANCE, PERFORMANCE.with_name("benchmarks.md")}
"""Pages that name the experiment for their figures."""

FIGURE = re.compile(r"\d ?(µs|[MG]B/s|s/GB)|CPU of one|[Mm]easured(,| in one run| \+)")


def table(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    section = PERFORMANCE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def readme_rows() -> list[str]:
    text = (ROOT / "README.md").read_text()
    section = text.partition("\n## Performance\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]


GOALS = table("Goals, and what measures them")
FIGURES = table("Figures, and what measures them")


def quoted(cell: str) -> str:
    return cell.removeprefix("`").removesuffix("`")


@pytest.mark.parametrize("named", sorted({row[-1] for row in GOALS + FIGURES}))
def test_what_is_said_to_measure_something_exists(named):
    for each in named.split("; "):
        subject, _, title = each.partition(": ")
        assert subject in SUBJECTS
        if subject in ("formats", "spark"):
            pytest.importorskip("pyspark")
        if subject == "log":
            pytest.importorskip("numba")
        experiments = importlib.import_module(f"subjects.{subject}").EXPERIMENTS
        assert title in [experiment.title for experiment in experiments]


@pytest.mark.parametrize("row", FIGURES, ids=lambda row: quoted(row[0]))
def test_a_figure_is_still_where_it_was_found(row):
    figure, where, _ = row
    assert quoted(figure) in (ROOT / where).read_text()


@pytest.mark.parametrize("row", readme_rows())
def test_every_row_of_the_readme_names_its_experiment(row):
    assert any(where == "README.md" and quoted(figure) in row for figure, where, _ in FIGURES)


def test_every_measured_figure_of_another_page_names_its_experiment():
    pages = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
    unnamed = [
        f"{page.relative_to(ROOT)}: {line.strip()[:120]}"
        for page in pages
        if page not in HERE
        for line in page.read_text().splitlines()
        if FIGURE.search(line) and not any(quoted(figure) in line for figure, _, _ in FIGURES)
    ]
    assert not unnamed


def test_no_two_experiments_of_a_subject_have_one_name():
    subjects = ("machine", "kafka", "http", "queues", "start", "memory", "growth", "claims")
    for subject in (*subjects, "cluster"):
        experiments = importlib.import_module(f"subjects.{subject}").EXPERIMENTS
        titles = [experiment.title for experiment in experiments]
        names = [row.name for experiment in experiments for row in experiment.rows]
        assert len(titles) == len(set(titles))
        assert len(names) == len(set(names))
