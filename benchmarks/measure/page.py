"""The page of published results in the documentation, generated from stored results."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from measure.plot import draw_plot
from measure.report import EXPLANATION, Report, facts_list, notes_list, printed_table
from measure.stored import read_json

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "benchmarks" / "published"
"""The results that the documentation rests on: one file of a subject, and its plot."""
PAGE = ROOT / "docs" / "internals" / "benchmarks.md"


def publish(results: Iterable[Path], published: Path, page: Path) -> None:
    """Add these results to the published ones, and write the page again."""
    published.mkdir(exist_ok=True)
    for path in results:
        subject = read_json(path).subject
        shutil.copyfile(path, published / f"{subject}.json")
    for path in published.glob("*.json"):
        draw_plot(read_json(path), path.with_suffix(".png"))
    page.write_text(page_text(published))


def page_text(published: Path) -> str:
    """Return the page for the published results."""
    reports = [read_json(path) for path in sorted(published.glob("*.json"))]
    return f"""# Benchmarks: the results

Written by `python benchmarks/run.py --report` from the files in `benchmarks/published/`; not to be
edited. How to run them, and what each peer's setting means, is in [benchmarking](benchmarking.md);
why some goals are missed, in [performance](performance.md).

{EXPLANATION}

{_summary(reports)}
{"".join(_section(report) for report in reports)}"""


def _summary(reports: Sequence[Report]) -> str:
    if not reports:
        return "Nothing has been published yet."
    lines = [
        f"| [{each.subject}](#{each.subject}) | {each.scale} | {each.date} | {_met(each)} |"
        for each in reports
    ]
    head = ["| subject | scale | measured | goals met |", "|---|---|---|---|"]
    return "\n".join([*head, *lines])


def _met(report: Report) -> str:
    judged = [
        judgement.is_met
        for outcome in report.outcomes
        for judgement in (outcome.judgement, *(peer.judgement for peer in outcome.peers))
        if judgement.goal is not None
    ]
    unknown = judged.count(None)
    text = f"{judged.count(True)} of {len(judged)}"
    return f"{text}, {unknown} unknown: the peer is missing" if unknown else text


def _section(report: Report) -> str:
    return f"""
## {report.subject}

{facts_list(report)}

{printed_table(report)}

![{report.subject}](../../benchmarks/published/{report.subject}.png)

{notes_list(report)}
"""
