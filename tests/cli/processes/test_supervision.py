"""Decisions about the processes of a local cluster, without any process."""

from __future__ import annotations

import signal

import pytest

from millstream.cli.processes.supervision import (
    ETCD,
    KILL_SECONDS,
    PAUSE_SECONDS_MAX,
    QUICK_ENDS_MAX,
    STEADY_SECONDS,
    Action,
    Announce,
    Ended,
    Event,
    LogMessage,
    Ready,
    Send,
    Signalled,
    Start,
    Tick,
    pause_seconds,
    step,
    supervise,
)

STOP_SECONDS = 25.0


class Local:
    """Two nodes and an etcd, with a clock that the test moves."""

    def __init__(self, *, has_etcd: bool = True, has_certificates: bool = False) -> None:
        self.now = 100.0
        self.state = supervise(
            ["node-1", "node-2"],
            self.now,
            stop_seconds_max=STOP_SECONDS,
            has_etcd=has_etcd,
            has_certificates=has_certificates,
        )

    def take(self, event: Event, *, after: float = 0.0) -> list[Action]:
        self.now += after
        self.state, actions = step(self.state, event, self.now)
        return actions

    def started(self) -> Local:
        """Start both nodes, and let them become ready."""
        self.take(Tick())
        self.take(Ready("node-1"))
        self.take(Ready("node-2"))
        return self

    def texts(self, actions: list[Action]) -> str:
        return "; ".join(action.text for action in actions if isinstance(action, LogMessage))


def sent(actions: list[Action]) -> list[tuple[str, int]]:
    return [(action.name, action.number) for action in actions if isinstance(action, Send)]


# Start.


def test_all_nodes_are_started_at_once_and_announced_when_the_last_is_ready():
    local = Local()
    assert local.take(Tick()) == [Start("node-1"), Start("node-2")]
    assert local.state.due_at() is None
    assert local.take(Ready("node-2")) == []
    assert local.take(Ready("node-1")) == [Announce()]
    assert local.state.exit_status is None


def test_a_node_that_ends_before_it_was_ever_ready_ends_all_with_status_1():
    local = Local()
    local.take(Tick())
    local.take(Ready("node-1"))
    actions = local.take(Ended("node-2", 1))
    assert local.texts(actions) == "node-2 could not be started: it ended with status 1"
    assert sent(actions) == [("node-1", signal.SIGTERM)]
    assert sent(local.take(Ended("node-1", 0))) == [(ETCD, signal.SIGTERM)]
    local.take(Ended(ETCD, 0))
    assert local.state.exit_status == 1


def test_a_signal_before_the_nodes_are_started_starts_none():
    local = Local()
    assert local.take(Signalled(signal.SIGTERM)) == [Send(ETCD, signal.SIGTERM)]
    assert local.take(Tick()) == []
    local.take(Ended(ETCD, 0))
    assert local.state.exit_status == 0


# Restarts.


@pytest.mark.parametrize("name", ["node-2", ETCD])
def test_a_process_that_ends_is_started_again_after_a_pause(name: str):
    local = Local().started()
    actions = local.take(Ended(name, -signal.SIGKILL), after=1000)
    assert local.texts(actions) == (
        f"{name} ended with signal SIGKILL; it is started again in 0.5 s"
    )
    assert local.take(Tick(), after=0.4) == []
    assert local.state.due_at() == pytest.approx(local.now + 0.1)
    assert local.take(Tick(), after=0.1) == [Start(name)]
    assert local.take(Ready("node-2")) == [], "it is announced once"
    assert local.state.exit_status is None


def test_pauses_double_up_to_a_limit():
    assert [pause_seconds(ends) for ends in (1, 2, 3, 4)] == [0.5, 1, 2, 4]
    assert pause_seconds(50) == PAUSE_SECONDS_MAX


def test_after_too_many_quick_ends_all_are_stopped_with_status_1():
    local = Local().started()
    for _ in range(QUICK_ENDS_MAX - 1):
        assert sent(local.take(Ended("node-2", 1), after=1)) == []
        assert local.take(Tick(), after=PAUSE_SECONDS_MAX) == [Start("node-2")]
    actions = local.take(Ended("node-2", 1), after=1)
    assert local.texts(actions) == (
        "node-2 ended 6 times within 60 s of its start, last with status 1; all processes are"
        " stopped"
    )
    assert sent(actions) == [("node-1", signal.SIGTERM)]
    local.take(Ended("node-1", 0))
    local.take(Ended(ETCD, -signal.SIGTERM))
    assert local.state.exit_status == 1


def test_a_process_that_ran_for_long_begins_anew_with_the_pauses():
    local = Local().started()
    for _ in range(3 * QUICK_ENDS_MAX):
        actions = local.take(Ended("node-1", -11), after=STEADY_SECONDS)
        assert "it is started again in 0.5 s" in local.texts(actions)
        assert local.take(Tick(), after=0.5) == [Start("node-1")]


# Stop.


def test_nodes_with_certificates_read_them_again_at_sighup_and_go_on():
    local = Local(has_certificates=True)
    local.take(Tick())
    local.take(Ready("node-2"))
    assert sent(local.take(Signalled(signal.SIGHUP))) == [("node-2", signal.SIGHUP)]
    assert local.state.stopped_by is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nodes_are_stopped_before_the_etcd_that_they_need(number: int):
    local = Local().started()
    actions = local.take(Signalled(number))
    assert sent(actions) == [("node-1", signal.SIGTERM), ("node-2", signal.SIGTERM)]
    assert local.take(Ended("node-2", 0)) == []
    assert local.take(Ended("node-1", 0)) == [Send(ETCD, signal.SIGTERM)]
    assert local.state.exit_status is None
    local.take(Ended(ETCD, -signal.SIGTERM))
    assert local.state.exit_status == 0


def test_sigquit_reaches_the_nodes_and_not_etcd():
    local = Local().started()
    actions = local.take(Signalled(signal.SIGQUIT))
    assert sent(actions) == [("node-1", signal.SIGQUIT), ("node-2", signal.SIGQUIT)]
    local.take(Ended("node-1", 131))
    assert local.take(Ended("node-2", 131)) == [Send(ETCD, signal.SIGTERM)]
    local.take(Ended(ETCD, 0))
    assert local.state.exit_status == 131


def test_without_an_etcd_of_its_own_the_command_ends_with_the_last_node():
    local = Local(has_etcd=False).started()
    local.take(Signalled(signal.SIGTERM))
    local.take(Ended("node-1", 0))
    assert local.take(Ended("node-2", 0)) == []
    assert local.state.exit_status == 0


@pytest.mark.parametrize("status", [1, -signal.SIGKILL, -signal.SIGTERM])
def test_a_node_that_does_not_stop_cleanly_makes_the_status_1(status: int):
    local = Local(has_etcd=False).started()
    local.take(Signalled(signal.SIGTERM))
    local.take(Ended("node-1", 0))
    local.take(Ended("node-2", status))
    assert local.state.exit_status == 1


def test_a_node_that_was_told_to_stop_before_it_listened_has_lost_nothing():
    local = Local(has_etcd=False)
    local.take(Tick())
    local.take(Ready("node-1"))
    local.take(Signalled(signal.SIGTERM))
    local.take(Ended("node-1", 0))
    local.take(Ended("node-2", -signal.SIGTERM))
    assert local.state.exit_status == 0


def test_a_node_that_waits_to_be_started_again_is_not_started_after_a_signal():
    local = Local(has_etcd=False).started()
    local.take(Ended("node-2", 1))
    assert sent(local.take(Signalled(signal.SIGTERM))) == [("node-1", signal.SIGTERM)]
    assert local.take(Tick(), after=1) == []
    local.take(Ended("node-1", 0))
    assert local.state.exit_status == 0


def test_a_second_signal_is_passed_on_to_nodes_that_still_run():
    local = Local().started()
    local.take(Signalled(signal.SIGINT))
    local.take(Ended("node-1", 0))
    assert sent(local.take(Signalled(signal.SIGINT))) == [("node-2", signal.SIGTERM)]


def test_what_does_not_stop_in_time_is_killed_and_named():
    local = Local().started()
    local.take(Signalled(signal.SIGTERM))
    local.take(Ended("node-1", 0))
    assert local.state.due_at() == pytest.approx(local.now + STOP_SECONDS + KILL_SECONDS)
    actions = local.take(Tick(), after=STOP_SECONDS + KILL_SECONDS)
    assert ("node-2", signal.SIGKILL) in sent(actions)
    assert "node-2 did not stop in time and is killed" in local.texts(actions)
    assert local.state.due_at() is None
    local.take(Ended("node-2", -signal.SIGKILL))
    local.take(Ended(ETCD, -signal.SIGKILL))
    assert local.state.exit_status == 1
