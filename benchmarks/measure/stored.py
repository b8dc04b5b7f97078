"""Reports as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure.report import Report
from measure.rows import Against, Goal, Judgement, Outcome, PeerOutcome, Row, Sample


def write_json(report: Report, path: Path) -> None:
    content = {
        "subject": report.subject,
        "scale": report.scale,
        "date": report.date,
        "seconds": round(report.seconds, 1),
        "facts": report.facts,
        "notes": report.notes,
        "rows": [_plain(outcome) for outcome in report.outcomes],
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Report:
    """Return a report as it was written."""
    content = json.loads(path.read_text())
    outcomes = [_outcome(row) for row in content.pop("rows")]
    return Report(outcomes=outcomes, **content)


def _plain(outcome: Outcome) -> dict[str, object]:
    row = outcome.row
    return {
        "name": row.name,
        "unit": row.unit,
        "ours": _summary(outcome.ours),
        "limit": _summary(outcome.limit),
        "limit_name": row.limit_name,
        "ratio": _summary(outcome.ratio),
        **_verdict(outcome.judgement),
        "peers": [_plain_peer(peer) for peer in outcome.peers],
    }


def _plain_peer(peer: PeerOutcome) -> dict[str, object]:
    return {
        "peer": peer.against.peer,
        "name": peer.against.name,
        "figure": _summary(peer.figure),
        "ratio": _summary(peer.ratio),
        "missing": peer.missing,
        **_verdict(peer.judgement),
    }


def _verdict(judgement: Judgement) -> dict[str, object]:
    return {
        "goal": asdict(judgement.goal) if judgement.goal else None,
        "is_met": judgement.is_met,
        "is_unanimous": judgement.is_unanimous,
    }


def _summary(sample: Sample | None) -> dict[str, object] | None:
    if sample is None:
        return None
    return {"median": sample.median, "spread": sample.spread, "values": sample.values}


def _outcome(stored: Any) -> Outcome:
    ours, limit = _sample(stored["ours"]), _sample(stored["limit"])
    assert ours is not None
    peers = tuple(_peer(peer) for peer in stored["peers"])
    row = Row(
        name=stored["name"],
        unit=stored["unit"],
        ours="ours",
        limit=None if limit is None else "limit",
        limit_name=stored["limit_name"],
        goal=_goal(stored["goal"]),
        peers=tuple(peer.against for peer in peers),
    )
    return Outcome(row, ours, limit, _sample(stored["ratio"]), peers)


def _peer(stored: Any) -> PeerOutcome:
    against = Against(
        peer=stored["peer"], name=stored["name"], figure="", goal=_goal(stored["goal"])
    )
    figure, ratio = _sample(stored["figure"]), _sample(stored["ratio"])
    return PeerOutcome(against, figure, ratio, stored["missing"])


def _goal(stored: Any) -> Goal | None:
    return None if stored is None else Goal(**stored)


def _sample(stored: Any) -> Sample | None:
    return None if stored is None else Sample(tuple(stored["values"]))
