"""Plot of a run: ours, the limit and the peers of every row, side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from measure.report import Report, figure_text
from measure.rows import Outcome, Sample

_OURS = {True: "#2f855a", False: "#c53030", None: "#4a5568"}
_LIMIT = "#cbd5e0"
_PEERS = {"kafka": "#dd6b20", "redis": "#805ad5", "nats": "#3182ce"}
_PEER_ELSE = "#b7791f"

_BAR_INCHES = 0.21
_GAP_BARS = 0.9
"""Between rows, in bars."""
_NAME_WIDTH = 42


class _Bar(NamedTuple):
    figure: Sample
    label: str
    colour: str


def draw_plot(report: Report, path: Path) -> None:
    """Draw every row that has something beside it, each to a scale of its own."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and every child process would.

    mpl.use("Agg")  # Draws without a screen; must come before the next line.
    from matplotlib import pyplot  # noqa: PLC0415

    groups = [(each, bars) for each in report.outcomes if len(bars := list(_bars(each))) > 1]
    height = sum(len(bars) + _GAP_BARS for _, bars in groups)
    figure, axes = pyplot.subplots(figsize=(11, 1.3 + _BAR_INCHES * height))
    position, ticks = 0.0, []
    for outcome, bars in groups:
        ticks.append((position + (len(bars) - 1) / 2, _title(outcome)))
        _draw_row(axes, position, outcome, bars)
        position += len(bars) + _GAP_BARS
    axes.set_yticks(
        [place for place, _ in ticks], [textwrap.fill(name, _NAME_WIDTH) for _, name in ticks]
    )
    axes.set_ylim(max(position - _GAP_BARS, 1) - 0.3, -0.7)
    axes.set_xlim(0, 1.9)  # Room for the labels.
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_title(
        f"{report.subject} ({report.scale}): ours green where every goal of the row is met, red"
        " where one is not.\nEach row has its own scale; line: extremes, diamond: goal.",
        fontsize=10,
        loc="left",
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _title(outcome: Outcome) -> str:
    """Return the name of a row, and who is not among its bars."""
    missing = "".join(f"; {peer.against.name} missing" for peer in outcome.peers if peer.missing)
    goals = [outcome.row.goal, *(peer.against.goal for peer in outcome.peers)]
    is_less_better = any(goal is not None and not goal.is_floor for goal in goals)
    return outcome.row.name + (" (less is better)" if is_less_better else "") + missing


def _bars(outcome: Outcome) -> Iterator[_Bar]:
    yield _Bar(outcome.ours, "ours", _OURS[_verdict(outcome)])
    if outcome.limit is not None:
        yield _Bar(outcome.limit, f"limit: {outcome.row.limit_name}", _LIMIT)
    for peer in outcome.peers:
        if peer.figure is not None:
            colour = _PEERS.get(peer.against.peer.split()[0], _PEER_ELSE)
            yield _Bar(peer.figure, peer.against.name, colour)


def _verdict(outcome: Outcome) -> bool | None:
    """Whether all goals of a row are met, that of the limit and those of the peers."""
    met = {outcome.judgement.is_met, *(peer.judgement.is_met for peer in outcome.peers)} - {None}
    return all(met) if met else None


def _draw_row(axes: Any, top: float, outcome: Outcome, bars: list[_Bar]) -> None:
    whole = max(bar.figure.median for bar in bars) or 1.0
    goal = _goal_figure(outcome)
    for number, bar in enumerate(bars):
        place, share = top + number, bar.figure.median / whole
        axes.barh(place, share, color=bar.colour, height=0.85)
        values = bar.figure.values
        ends = [min(value / whole, 1.04) for value in (min(values), max(values))]
        axes.hlines(place, *ends, color="black", linewidth=0.8)
        taken = [share, *ends]
        if number == 0 and goal is not None and goal <= whole:
            axes.plot(goal / whole, place, "D", color="black", markersize=4)
            taken.append(goal / whole)
        text = f"{figure_text(bar.figure, outcome.row.unit)}  {bar.label}"
        axes.text(max(taken) + 0.015, place, text, va="center", fontsize=7.5)


def _goal_figure(outcome: Outcome) -> float | None:
    """Return the goal of the row itself, in its unit."""
    goal = outcome.row.goal
    if goal is None:
        return None
    if not goal.is_of_ratio:
        return goal.bound
    return None if outcome.limit is None else goal.bound * outcome.limit.median
