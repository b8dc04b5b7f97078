"""Peers are measured in turns with ours; a missing peer is reported, and the others still run."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from measure.experiment import Experiment, PeerArms, Scale, run_experiment
from measure.page import PAGE, PUBLISHED, page_text, publish
from measure.peers import PeerMissing, Peers
from measure.report import Report, printed_table
from measure.rows import Against, Row, at_least, ratio_at_least, ratio_at_most
from measure.stored import read_json, write_json

REASON = "mill-server is not on the PATH"


@dataclass(frozen=True)
class FakeServer:
    port: int = 1
    version: str = "fake 1.0"

    def cpu_seconds(self):
        return 0.0


class Turns:
    """Arms that record their turns, and return the given figures one by one."""

    def __init__(self):
        self.taken = []

    def arm(self, name, *figures):
        left = list(figures)

        def turn():
            self.taken.append(name)
            value = left.pop(0)
            if isinstance(value, Exception):
                raise value
            return {name: value}

        return turn

    def own(self, *arms):
        @contextmanager
        def prepared(scale, folder):
            assert not list(folder.iterdir())
            yield arms

        return prepared

    def peer(self, name, *arms):
        @contextmanager
        def prepared(scale, folder, server):
            assert server.version == "fake 1.0"
            assert not list(folder.iterdir())
            yield arms

        return PeerArms(peer=name, arms=prepared)


@contextmanager
def present(folder):
    yield FakeServer()


@contextmanager
def absent(folder):
    raise PeerMissing(REASON)
    yield


def peers_in(folder, asked=("swift", "slow", "lost")):
    return Peers({"swift": present, "slow": present, "lost": absent}, asked, folder)


def row(*against, **options):
    return Row(name="work", unit="jobs/s", ours="ours", peers=against, **options)


def against(name, goal=None):
    return Against(peer=name, name=name.title(), figure=name, goal=goal)


def experiment(turns, ours, rows, *peer_arms):
    arms = turns.own(turns.arm("limit", 100.0, 100.0), turns.arm("ours", *ours))
    return Experiment(title="work", note="Nothing.", rows=rows, arms=arms, peers=peer_arms)


def report(outcomes, **facts):
    return Report(
        subject="work",
        scale="smoke",
        date="2026-01-02 03:04 UTC",
        seconds=1.0,
        facts=facts,
        notes={"work": "Nothing."},
        outcomes=outcomes,
    )


@pytest.fixture
def outcomes(tmp_path):
    """A row with a limit, a faster peer, a slower peer, and a missing one."""
    turns = Turns()
    line = row(
        against("swift", ratio_at_least(1)),
        against("slow", ratio_at_least(3)),
        against("lost", ratio_at_least(1)),
        limit="limit",
        limit_name="nothing at all",
        goal=ratio_at_least(0.1),
    )
    with peers_in(tmp_path) as peers:
        found = run_experiment(
            experiment(
                turns,
                (40.0, 60.0),
                (line,),
                turns.peer("swift", turns.arm("swift", 80.0, 120.0)),
                turns.peer("slow", turns.arm("slow", 10.0, 12.0)),
                turns.peer("lost", turns.arm("lost")),
            ),
            Scale.SMOKE,
            tmp_path,
            peers,
        )
        facts = peers.facts()
    assert turns.taken == ["limit", "ours", "swift", "slow"] * 2
    return found, facts


def test_each_repetition_gives_a_ratio_to_each_peer(outcomes):
    ((outcome,), _) = outcomes
    swift, slow, _ = outcome.peers
    assert swift.ratio.values == (0.5, 0.5)
    assert swift.judgement.is_met is False
    assert slow.ratio.values == (4.0, 5.0)
    assert slow.judgement.is_met is True


def test_a_peer_that_cannot_be_had_is_missing_with_its_reason(outcomes):
    ((outcome,), facts) = outcomes
    lost = outcome.peers[2]
    assert (lost.figure, lost.ratio, lost.missing) == (None, None, REASON)
    assert lost.judgement.is_met is None
    assert facts == {
        "peer swift": "fake 1.0",
        "peer slow": "fake 1.0",
        "peer lost": f"missing: {REASON}",
    }


def test_the_table_has_a_line_for_each_peer(outcomes):
    lines = printed_table(report(outcomes[0])).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells == [
        ["work", "50 jobs/s ±20%", "100 jobs/s: nothing at all", "0.5 ±20%", "≥ 0.1x", "yes"],
        ["", "", "100 jobs/s ±20%: Swift", "0.5", "≥ 1x", "NO"],
        ["", "", "11 jobs/s ±9%: Slow", "4.5 ±11%", "≥ 3x", "yes"],
        ["", "", f"Lost: missing: {REASON}", "", "≥ 1x", ""],
    ]


def test_without_limit_and_goal_the_first_peer_stands_in_the_line_of_the_row(tmp_path):
    turns = Turns()
    with peers_in(tmp_path) as peers:
        swift = turns.peer("swift", turns.arm("swift", 5.0, 5.0))
        lines = (row(against("swift", ratio_at_most(1))), row(against("swift"), goal=at_least(1)))
        found = run_experiment(
            experiment(turns, (5.0, 5.0), lines, swift), Scale.SMOKE, tmp_path, peers
        )
    first, second, third = printed_table(report(found)).splitlines()[2:]
    assert "5 jobs/s: Swift" in first
    assert first.endswith("| yes |")
    assert "≥ 1 jobs/s" in second
    assert third.startswith("|      |")


def test_a_peer_that_gives_up_in_a_turn_has_no_more_turns(tmp_path):
    turns = Turns()
    with peers_in(tmp_path) as peers:
        swift = turns.peer("swift", turns.arm("swift", 5.0, PeerMissing("it died")))
        slow = turns.peer("slow", turns.arm("slow", PeerMissing("it never lived")))
        lines = (row(against("swift"), against("slow")),)
        (outcome,) = run_experiment(
            experiment(turns, (5.0, 5.0), lines, swift, slow), Scale.SMOKE, tmp_path, peers
        )
    assert [peer.missing for peer in outcome.peers] == ["it died", "it never lived"]
    assert turns.taken == ["limit", "ours", "swift", "slow", "limit", "ours", "swift"]


def test_a_peer_that_is_not_asked_for_is_neither_started_nor_in_the_table(tmp_path):
    turns = Turns()
    with peers_in(tmp_path, asked=()) as peers:
        lost = turns.peer("lost", turns.arm("lost"))
        lines = (row(against("lost")),)
        (outcome,) = run_experiment(
            experiment(turns, (5.0, 5.0), lines, lost), Scale.SMOKE, tmp_path, peers
        )
        assert peers.facts() == {"peers not asked for": "swift, slow, lost"}
    assert outcome.peers == ()


def test_a_peer_is_started_once_and_stopped_at_the_end(tmp_path):
    events = []

    @contextmanager
    def start(folder):
        events.append(f"start in {folder.name}")
        yield FakeServer()
        events.append("stop")

    with Peers({"mill sync=always": start}, ("mill",), tmp_path) as peers:
        assert peers.is_asked("mill sync=always")
        assert peers.server("mill sync=always") is peers.server("mill sync=always")
        assert events == ["start in mill-sync=always"]
    assert events == ["start in mill-sync=always", "stop"]


def test_a_missing_peer_is_looked_for_only_once(tmp_path):
    looked = []

    @contextmanager
    def start(folder):
        looked.append(folder)
        raise PeerMissing(REASON)
        yield

    with Peers({"mill": start}, ("mill",), tmp_path) as peers:
        for _ in range(2):
            with pytest.raises(PeerMissing, match=REASON):
                peers.server("mill")
    assert len(looked) == 1


def test_a_report_reads_back_as_it_was_written(outcomes, tmp_path):
    written = report(outcomes[0], CPU="quick")
    path = tmp_path / "work.json"
    write_json(written, path)
    read = read_json(path)
    assert printed_table(read) == printed_table(written)
    assert (read.subject, read.date, read.facts, read.notes) == (
        "work",
        "2026-01-02 03:04 UTC",
        {"CPU": "quick"},
        {"work": "Nothing."},
    )
    write_json(read, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


def test_what_is_published_makes_the_page(outcomes, tmp_path):
    result, published = tmp_path / "work-quick.json", tmp_path / "published"
    written = report(outcomes[0], CPU="quick")
    write_json(written, result)
    publish([result], published, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert page == page_text(published)
    expected = "2 of 4, 1 unknown: the peer is missing"
    assert f"| [work](#work) | smoke | 2026-01-02 03:04 UTC | {expected} |" in page
    assert printed_table(written) in page
    assert "- measured: 2026-01-02 03:04 UTC" in page
    assert "- CPU: quick" in page
    assert (published / "work.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_of_the_documentation_is_what_the_published_results_make():
    assert PAGE.read_text() == page_text(PUBLISHED), "run `python benchmarks/run.py --report`"
