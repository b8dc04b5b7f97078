"""The file of a campaign: rounds are run once, and all of them are summed up."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.testing.cluster import chaos
from millstream.testing.cluster.campaign import Campaign, CheckedRound, FailedRounds
from millstream.testing.cluster.chaos import (
    ChaosFailed,
    RoundResult,
    checked_round,
    failed_rounds,
    main,
    plan_rounds,
)


def results(*, first: int, count: int, pause_s: float = 1.0) -> list[CheckedRound]:
    return [
        checked_round(7, RoundResult(planned, pause_s, "GroupLoad", 2.0, 0.5, 1.5))
        for planned in plan_rounds(7, count, first=first)
    ]


def test_a_campaign_that_is_opened_again_has_its_rounds_and_failures(tmp_path: Path):
    campaign = Campaign(tmp_path / "campaign")
    campaign.add(results(first=1, count=2))
    campaign.add([FailedRounds(7, 3, 4, "a record is lost")])
    again = Campaign(tmp_path / "campaign")
    assert (again.rounds, again.failures) == (campaign.rounds, campaign.failures)
    assert [again.has(7, number) for number in (1, 2, 3)] == [True, True, False]
    assert not again.has(8, 1)


def test_all_rounds_are_summed_up(tmp_path: Path):
    campaign = Campaign(tmp_path / "campaign")
    campaign.add(results(first=1, count=2))
    campaign.add(results(first=3, count=1, pause_s=9.0))
    campaign.add([FailedRounds(7, 4, 5, "a record is lost")])
    lines = campaign.summary()
    assert lines[0] == "3 rounds of seed 7 were run and checked, 1 failures"
    assert lines[1] == "producers paused 1.0 s (median), 9.0 s (99 %), 9.0 s (longest)"
    assert lines[-1] == "failed: seed 7, rounds 4 to 5: a record is lost"
    kinds = {planned.fault for planned in plan_rounds(7, 3)}
    assert all(kind in lines[4] for kind in kinds)


def test_a_campaign_without_rounds_says_so(tmp_path: Path):
    assert "no round was checked" in Campaign(tmp_path / "campaign").summary()[0]


def test_a_failure_names_the_rounds_since_the_last_check():
    planned = plan_rounds(7, 3, first=5)
    failure = failed_rounds(7, ChaosFailed("HistoryBroken: a record is lost\nin round 7", planned))
    assert failure == FailedRounds(7, 5, 7, "HistoryBroken: a record is lost")


def test_a_campaign_that_is_complete_starts_no_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chaos, "chaos_cluster", None)
    path = tmp_path / "campaign"
    Campaign(path).add(results(first=1, count=2))
    assert main(["--seed", "7", "--rounds", "2", "--campaign", str(path)]) == 0
    assert "2 rounds of seed 7 were run and checked" in capsys.readouterr().out


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "campaign"
    path.write_text("[section]\n")
    with pytest.raises(SystemExit):
        main(["--campaign", str(path)])
    assert "campaign: line 1: " in capsys.readouterr().err
