"""What was measured, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measure.experiment import Experiment, Goal, Outcome, Sample

_HEADINGS = ("what", "ours", "limit, in this run", "ratio", "goal", "met")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All about one run of one subject."""

    subject: str
    scale: str
    seconds: float
    facts: Mapping[str, str]
    experiments: Sequence[Experiment]
    outcomes: Sequence[Outcome]


def printed_table(report: Report) -> str:
    """Return the table as Markdown, laid out so that it can be read as it is."""
    lines = [_HEADINGS, *(_cells(outcome) for outcome in report.outcomes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    ruled = [lines[0], tuple("-" * width for width in widths), *lines[1:]]
    return "\n".join(
        "| "
        + " | ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in ruled
    )


def write_markdown(report: Report, path: Path) -> None:
    facts = "\n".join(f"- {name}: {fact}" for name, fact in report.facts.items())
    notes = "\n".join(f"- **{each.title}**: {each.note}" for each in report.experiments)
    path.write_text(
        f"""# Benchmark: {report.subject} ({report.scale})

{facts}
- took: {report.seconds:.0f} s

{printed_table(report)}

A figure is the median of its repetitions; ± is half of the distance between the least and the
greatest. A ratio is the median of the ratios of single repetitions, in which ours and the limit
took turns. A question mark says that not all repetitions agree on whether the goal is met. Rows
without a goal are for information. 1 MB is a million bytes.

![Ratios to the limit]({path.with_suffix(".png").name})

## What was done

{notes}
"""
    )


def write_json(report: Report, path: Path) -> None:
    content = {
        "subject": report.subject,
        "scale": report.scale,
        "seconds": round(report.seconds, 1),
        "facts": report.facts,
        "rows": [_plain(outcome) for outcome in report.outcomes],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def _plain(outcome: Outcome) -> dict[str, object]:
    row = outcome.row
    return {
        "name": row.name,
        "unit": row.unit,
        "ours": _summary(outcome.ours),
        "limit": _summary(outcome.limit),
        "limit_name": row.limit_name,
        "ratio": _summary(outcome.ratio),
        "goal": asdict(row.goal) if row.goal else None,
        "is_met": outcome.is_met,
        "is_unanimous": outcome.is_unanimous,
    }


def _summary(sample: Sample | None) -> dict[str, object] | None:
    if sample is None:
        return None
    return {"median": sample.median, "spread": sample.spread, "values": sample.values}


def _cells(outcome: Outcome) -> tuple[str, ...]:
    row = outcome.row
    met = {True: "yes", False: "NO", None: ""}[outcome.is_met]
    if not outcome.is_unanimous:
        met += "?"
    limit = f"{_figure(outcome.limit, row.unit)}: {row.limit_name}" if outcome.limit else ""
    ratio = _figure(outcome.ratio, "") if outcome.ratio else ""
    return row.name, _figure(outcome.ours, row.unit), limit, ratio, _goal(row.goal, row.unit), met


def _figure(sample: Sample, unit: str) -> str:
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
