"""Decides what to do with the processes of a local cluster: a pure function of state, event, time.

    (state, event, now) -> (state, actions)

    nodes and etcd run ── one ends ──► started again after a pause, longer each time
         │                                  │ too many quick ends, or the first start failed
         │ signal                           ▼
         └──────────────────────────────► nodes are stopped, then etcd, and the command ends

etcd is stopped last: nodes that stop hand over leaderships and give up their leases through it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

STEADY_SECONDS = 60.0
"""A process that ran for this long is not one that fails again and again."""

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.5, 30.0

QUICK_ENDS_MAX = 6
"""Ends in a row, each within `STEADY_SECONDS` of the start, after which nothing is tried again.
With the pauses between them this takes a quarter of a minute at least.
"""

KILL_SECONDS = 15.0
"""How long after the deadline of its stop a process is killed: nodes end by themselves at it."""

EXIT_CLEAN, EXIT_FAILED = 0, 1
EXIT_QUIT = 128 + signal.SIGQUIT

ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process."""

    is_running: bool = False
    started_at: float = 0.0
    start_at: float | None = None
    """When it is to be started."""
    quick_ends: int = 0
    is_ready: bool = False
    """Whether it has been ready since it was started."""
    was_ready: bool = False
    """Whether it has been ready in any of its lives."""
    is_clean: bool = True
    """Whether it ended as it was asked to."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """All processes, and whether they are to end."""

    processes: Mapping[str, ProcessState]
    stop_seconds_max: float
    """How long a node may take to stop."""
    has_certificates: bool = False
    """Whether nodes read certificates again at SIGHUP."""
    stopped_by: int | None = None
    """The signal that stops all processes."""
    kill_at: float | None = None
    is_failed: bool = False
    is_announced: bool = False
    """Whether all nodes have been ready once."""

    @property
    def nodes(self) -> Mapping[str, ProcessState]:
        return {name: process for name, process in self.processes.items() if name != ETCD}

    @property
    def exit_status(self) -> int | None:
        """The exit status of the command; None as long as it is not over."""
        processes = self.processes.values()
        if self.stopped_by is None or any(process.is_running for process in processes):
            return None
        if self.is_failed or not all(process.is_clean for process in processes):
            return EXIT_FAILED
        return EXIT_QUIT if self.stopped_by == signal.SIGQUIT else EXIT_CLEAN

    def due_at(self) -> float | None:
        """Return when a `Tick` has something to do."""
        times = [process.start_at for process in self.processes.values()]
        return min((time for time in (*times, self.kill_at) if time is not None), default=None)


# Events.


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A node has printed that it is ready."""

    name: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended; a negative status is the number of a signal."""

    name: str
    status: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """The command got a signal."""

    number: int


Event = Tick | Ready | Ended | Signalled


# Actions.


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process."""

    name: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send a signal to a process."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Print that all nodes are ready."""


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Log what happened."""

    text: str
    is_error: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)


Action = Start | Send | Announce | LogMessage


def supervise(
    nodes: list[str],
    now: float,
    *,
    stop_seconds_max: float,
    has_etcd: bool,
    has_certificates: bool = False,
) -> Supervision:
    """Return the first state: an etcd that runs, if there is one, and nodes to be started."""
    processes = {name: ProcessState(start_at=now) for name in nodes}
    if has_etcd:
        processes[ETCD] = ProcessState(
            is_running=True, started_at=now, is_ready=True, was_ready=True
        )
    return Supervision(processes, stop_seconds_max, has_certificates)


def step(state: Supervision, event: Event, now: float) -> tuple[Supervision, list[Action]]:
    """Apply an event, and return the actions that follow from it."""
    match event:
        case Tick():
            return _on_tick(state, now)
        case Ready(name):
            return _on_ready(state, name)
        case Ended(name, status):
            return _on_ended(state, name, status, now)
        case Signalled(number):
            return _on_signal(state, number, now)


def _on_tick(state: Supervision, now: float) -> tuple[Supervision, list[Action]]:
    actions: list[Action] = []
    if state.kill_at is not None and now >= state.kill_at:
        late = [name for name, process in state.processes.items() if process.is_running]
        for name in late:
            state = _set(state, name, is_clean=False)
            actions.append(LogMessage(f"{name} did not stop in time and is killed", is_error=True))
            actions.append(Send(name, signal.SIGKILL))
        state = replace(state, kill_at=None)
    for name, process in state.processes.items():
        if process.start_at is not None and now >= process.start_at:
            state = _set(
                state, name, is_running=True, started_at=now, start_at=None, is_ready=name == ETCD
            )
            actions.append(Start(name))
    return state, actions


def _on_ready(state: Supervision, name: str) -> tuple[Supervision, list[Action]]:
    state = _set(state, name, is_ready=True, was_ready=True)
    if state.is_announced or not all(node.was_ready for node in state.nodes.values()):
        return state, []
    return replace(state, is_announced=True), [Announce()]


def _on_signal(state: Supervision, number: int, now: float) -> tuple[Supervision, list[Action]]:
    running = [name for name, node in state.nodes.items() if node.is_running]
    if number == signal.SIGHUP and state.has_certificates:
        ready = [name for name in running if state.nodes[name].is_ready]
        return state, [Send(name, signal.SIGHUP) for name in ready]
    # What stops a command that runs on a terminal stops it everywhere. A node is always asked by
    # SIGTERM, because it has no terminal.
    if number != signal.SIGQUIT:
        number = signal.SIGTERM
    if state.stopped_by is None:
        return _stop(state, number, now)
    # A second signal ends nodes at once.
    return state, [Send(name, number) for name in running or _running_etcd(state)]


def _on_ended(
    state: Supervision, name: str, status: int, now: float
) -> tuple[Supervision, list[Action]]:
    process = state.processes[name]
    state = _set(state, name, is_running=False, is_ready=False)
    fields: dict[str, object] = {"ended": name, "status": status}
    if state.stopped_by is not None:
        if name != ETCD:
            is_clean = process.is_clean and status in _clean_statuses(state, process)
            state = _set(state, name, is_clean=is_clean)
        return _stop_etcd(state, now)
    if not process.was_ready:
        text = f"{name} could not be started: it ended with {describe_status(status)}"
        return _fail(state, LogMessage(text, is_error=True, fields=fields), now)
    quick_ends = process.quick_ends + 1 if now - process.started_at < STEADY_SECONDS else 1
    if quick_ends >= QUICK_ENDS_MAX:
        text = (
            f"{name} ended {quick_ends} times within {STEADY_SECONDS:g} s of its start, last with"
            f" {describe_status(status)}; all processes are stopped"
        )
        return _fail(state, LogMessage(text, is_error=True, fields=fields), now)
    pause = pause_seconds(quick_ends)
    state = _set(state, name, quick_ends=quick_ends, start_at=now + pause)
    text = f"{name} ended with {describe_status(status)}; it is started again in {pause:g} s"
    return state, [LogMessage(text, fields=fields)]


def _fail(state: Supervision, report: LogMessage, now: float) -> tuple[Supervision, list[Action]]:
    state, actions = _stop(replace(state, is_failed=True), signal.SIGTERM, now)
    return state, [report, *actions]


def _stop(state: Supervision, number: int, now: float) -> tuple[Supervision, list[Action]]:
    kill_at = now + state.stop_seconds_max + KILL_SECONDS
    state = replace(state, stopped_by=number, kill_at=kill_at)
    for name in state.processes:
        state = _set(state, name, start_at=None)
    running = [name for name, node in state.nodes.items() if node.is_running]
    if not running:
        return _stop_etcd(state, now)
    return state, [Send(name, number) for name in running]


def _stop_etcd(state: Supervision, now: float) -> tuple[Supervision, list[Action]]:
    """Stop etcd if no node needs it any more."""
    if any(node.is_running for node in state.nodes.values()):
        return state, []
    etcd = _running_etcd(state)
    if etcd:
        state = replace(state, kill_at=now + KILL_SECONDS)
    return state, [Send(name, signal.SIGTERM) for name in etcd]


def _running_etcd(state: Supervision) -> list[str]:
    etcd = state.processes.get(ETCD)
    return [ETCD] if etcd is not None and etcd.is_running else []


def _clean_statuses(state: Supervision, process: ProcessState) -> Iterator[int]:
    """Yield the statuses of a process that has ended as it was asked to."""
    assert state.stopped_by is not None
    yield EXIT_QUIT if state.stopped_by == signal.SIGQUIT else EXIT_CLEAN
    if not process.is_ready:  # It may have been told before it listened to signals.
        yield EXIT_CLEAN
        yield -state.stopped_by


def pause_seconds(quick_ends: int) -> float:
    """Return how long to wait before a process is started again."""
    return float(min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2 ** (quick_ends - 1)))


def describe_status(status: int) -> str:
    """Describe the exit status of a process."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def _set(state: Supervision, name: str, **changes: object) -> Supervision:
    changed = replace(state.processes[name], **changes)  # type: ignore[arg-type]
    return replace(state, processes={**state.processes, name: changed})
