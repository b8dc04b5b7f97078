"""The schedule of faults: the same for a seed, with every kind of fault."""

from __future__ import annotations

import pytest

from millstream.testing.cluster.chaos import ETCD_MEMBERS, NODES, main, plan_rounds
from millstream.testing.cluster.faults import FAULTS


def test_a_seed_decides_all_rounds_and_another_seed_others():
    assert plan_rounds(7, 40) == plan_rounds(7, 40)
    assert plan_rounds(7, 40) != plan_rounds(8, 40)


def test_a_round_of_a_schedule_can_be_repeated_alone():
    assert plan_rounds(7, 1, first=13) == plan_rounds(7, 20)[12:13]


def test_every_kind_of_fault_is_used_before_one_is_repeated():
    rounds = plan_rounds(3, 2 * len(FAULTS))
    for half in (rounds[: len(FAULTS)], rounds[len(FAULTS) :]):
        assert {planned.fault for planned in half} == set(FAULTS)


def test_targets_exist_and_the_other_node_is_another_one():
    for planned in plan_rounds(5, 200):
        target = planned.target
        assert {target.node, target.other} < set(range(1, NODES + 1))
        assert target.node != target.other
        assert target.member in range(ETCD_MEMBERS)


def test_a_fault_that_is_over_when_it_was_injected_is_not_held():
    for planned in plan_rounds(5, 200):
        assert (planned.hold_s == 0) == (planned.fault == "rolling-restart")


def test_an_unknown_fault_is_refused_with_those_that_exist(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--faults", "pause,earthquake"])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "got earthquake" in message
    assert "kill-one" in message


@pytest.mark.parametrize("option", ["--rounds", "--first", "--check-every"])
def test_numbers_below_one_are_refused(option: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main([option, "0"])
    assert "must be at least 1, got 0" in capsys.readouterr().err
