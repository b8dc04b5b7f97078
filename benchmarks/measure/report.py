"""Report of a run: a table that is readable as text and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure.rows import Goal, Judgement, Outcome, PeerOutcome, Sample

_REASON_WIDTH = 90
"""In the table; the facts have all of it."""

_HEADINGS = ("what", "ours", "beside it, in this run", "ratio", "goal", "met")

EXPLANATION = """\
A figure is the median of its repetitions; ± is half of the distance between the minimum and the
maximum. A ratio is ours divided by theirs: the median of the ratios of single repetitions, in which
ours, the limit and the peers alternate. A question mark means that repetitions disagree on whether
the goal is met. Rows without a goal are for information. 1 MB is a million bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of one run of one subject."""

    subject: str
    scale: str
    date: str
    """Start of the run, in UTC."""
    seconds: float
    facts: Mapping[str, str]
    notes: Mapping[str, str]
    """Descriptions of the experiments, by title."""
    outcomes: Sequence[Outcome]


def printed_table(report: Report) -> str:
    """Return the table as Markdown, laid out so that it can be read as it is."""
    lines = [_HEADINGS, *(line for outcome in report.outcomes for line in _lines(outcome))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    ruled = [lines[0], tuple("-" * width for width in widths), *lines[1:]]
    return "\n".join(
        "| "
        + " | ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in ruled
    )


def facts_list(report: Report) -> str:
    """Return what the figures depend on, besides the code."""
    return "\n".join(
        [
            f"- measured: {report.date}, in {report.seconds:.0f} s",
            *(f"- {name}: {fact}" for name, fact in report.facts.items()),
        ]
    )


def notes_list(report: Report) -> str:
    """Return what each experiment does."""
    return "\n".join(f"- **{title}**: {note}" for title, note in report.notes.items())


def write_markdown(report: Report, path: Path) -> None:
    path.write_text(
        f"""# Benchmark: {report.subject} ({report.scale})

{facts_list(report)}

{printed_table(report)}

{EXPLANATION}

![Every row beside its limit and its peers]({path.with_suffix(".png").name})

## What was done

{notes_list(report)}
"""
    )


def _lines(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a row: its limit and its goal, then each peer."""
    row, unit = outcome.row, outcome.row.unit
    head = (row.name, figure_text(outcome.ours, unit))
    peers = list(outcome.peers)
    if outcome.limit is not None and outcome.ratio is not None:
        beside = f"{figure_text(outcome.limit, unit)}: {row.limit_name}"
        judged = figure_text(outcome.ratio, ""), *_verdict(outcome.judgement, unit)
        yield *head, beside, *judged
    elif row.goal is not None or not peers:
        yield *head, "", "", *_verdict(outcome.judgement, unit)
    else:
        yield *head, *_peer_cells(peers.pop(0), unit)
    for peer in peers:
        yield "", "", *_peer_cells(peer, unit)


def _peer_cells(peer: PeerOutcome, unit: str) -> tuple[str, ...]:
    name = peer.against.name
    if peer.figure is None or peer.ratio is None:
        reason = textwrap.shorten(peer.missing, _REASON_WIDTH, placeholder=" ...")
        return f"{name}: missing: {reason}", "", *_verdict(peer.judgement, unit)
    beside = f"{figure_text(peer.figure, unit)}: {name}"
    return beside, figure_text(peer.ratio, ""), *_verdict(peer.judgement, unit)


def _verdict(judgement: Judgement, unit: str) -> tuple[str, str]:
    met = {True: "yes", False: "NO", None: ""}[judgement.is_met]
    return _goal(judgement.goal, unit), met if judgement.is_unanimous else f"{met}?"


def figure_text(sample: Sample, unit: str) -> str:
    """Return the median with its unit, and the spread."""
    spread = f" ±{sample.spread:.0%}" if sample.spread else ""
    return f"{_number(sample.median)} {unit}".rstrip() + spread


def _goal(goal: Goal | None, unit: str) -> str:
    if goal is None:
        return ""
    sign = "≥" if goal.is_floor else "≤"
    return f"{sign} {goal.bound:g}x" if goal.is_of_ratio else f"{sign} {_number(goal.bound)} {unit}"


def _number(value: float) -> str:
    """Three digits that count, no more."""
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
