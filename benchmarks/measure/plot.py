"""One picture of a run: how every row stands to its limit, and where its goal lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measure.experiment import Outcome, Sample
from measure.report import Report

_COLOURS = {True: "#2f855a", False: "#c53030", None: "#a0aec0"}
_ROW_INCHES = 0.34


def draw_plot(report: Report, path: Path) -> None:
    """Draw the ratio of every row that has a limit, its extremes and its goal."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and every child process would.

    mpl.use("Agg")  # Draws without a screen; must come before the next line.
    from matplotlib import pyplot  # noqa: PLC0415

    rows = [outcome for outcome in report.outcomes if outcome.ratio is not None]
    figure, axes = pyplot.subplots(figsize=(11, 1.6 + _ROW_INCHES * len(rows)))
    for height, outcome in enumerate(reversed(rows)):
        _draw_row(axes, height, outcome)
    axes.set_yticks(range(len(rows)), [outcome.row.name for outcome in reversed(rows)])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("ours / limit (bar: median, line: extremes, diamond: goal)")
    axes.set_title(f"{report.subject} ({report.scale}): green meets its goal, red does not")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_row(axes: Any, height: int, outcome: Outcome) -> None:
    ratio, goal = outcome.ratio, outcome.row.goal
    assert isinstance(ratio, Sample)
    # The axis is logarithmic, so a bar starts at 1: the limit itself.
    axes.barh(height, ratio.median - 1, left=1, color=_COLOURS[outcome.is_met], height=0.6)
    axes.hlines(height, min(ratio.values), max(ratio.values), color="black", linewidth=1)
    if goal and goal.is_of_ratio:
        axes.plot(goal.bound, height, "D", color="black", markersize=5)
