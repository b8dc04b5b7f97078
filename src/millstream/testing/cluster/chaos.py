"""Seeded rounds of faults against a real cluster under load; a checker compares afterwards.

    python -m millstream.testing.cluster.chaos --rounds 20 --seed 7
    python -m millstream.testing.cluster.chaos --seed 7 --first 13 --rounds 1     one round of it
    python -m millstream.testing.cluster.chaos --faults pause,cut-etcd            only these
    python -m millstream.testing.cluster.chaos --rounds 500 --campaign FILE       in pieces

A round injects one fault while all loads run, holds it, heals it, and waits until every load goes
on and all replicas are in sync. After some rounds (`--check-every`) the loads are stopped, and
their histories and all replicas are checked; then new ones begin on new topics.

The seed decides which faults strike where, and for how long. Processes and clients are real, so
what happens between them differs from run to run. If a promise is broken, the exit status is 1,
and the data and logs of all nodes are kept. With `--campaign`, a file has what was run and checked:
started again, the command goes on with the other rounds, and sums up all of them.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import millstream
from millstream.clients.kafka.client import KafkaClient
from millstream.errors import LogOffline, OutcomeUnknown
from millstream.testing.cluster.campaign import Campaign, CheckedRound, FailedRounds
from millstream.testing.cluster.faults import FAULTS, FaultTarget
from millstream.testing.cluster.loads.confluent import (
    PARTITIONS,
    GroupLoad,
    IdempotentLoad,
    TransactionLoad,
)
from millstream.testing.cluster.loads.http import (
    CONFIG,
    AppendLoad,
    QueueLoad,
    StreamLoad,
    WatchLoad,
)
from millstream.testing.cluster.loads.load import Load, wait_for_more
from millstream.testing.cluster.memory_limit import why_no_memory_limit
from millstream.testing.cluster.namespaces import why_unavailable
from millstream.testing.cluster.running import RunningCluster, running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODES = 3
ETCD_MEMBERS = 3
CHECK_EVERY = 10
HOLD_SECONDS_MIN = 0.5
HOLD_SECONDS_MAX = 4.5
"""How long faults are held: shorter than a lease, and longer than two."""

LEADER_SHARE = 0.5
"""Share of the rounds whose fault strikes the leader of a partition that is written to."""

SAME_SECONDS_MAX = 30.0
"""How long after healing replicas may differ."""

SETTINGS = {"cluster.lease_ttl_ms": "2000", "cluster.isr_change_interval_ms": "1000"}
"""Shorter than the defaults: more elections, and more changes of the ISR, in the same time."""

DONE_AT_ONCE = frozenset({"rolling-restart"})
"""Faults that are over when they were injected: there is nothing to hold."""


TOPICS = ("idempotent", "transactions", "appends", "jobs")
COPY = "copied"
"""The topic to which Spark copies the first one."""

TOLERATED = (LogOffline, OutcomeUnknown)
"""Errors with which clients of a node may be answered when its disk fails, or that say themselves
that the outcome is not known. Then the record may be stored or not.
"""


class Round(NamedTuple):
    """One fault of a schedule."""

    number: int
    fault: str
    target: FaultTarget
    strikes_leader: bool
    """Whether the leader of a partition is struck instead of the node of the target."""
    hold_s: float

    def __str__(self) -> str:
        node = "leader" if self.strikes_leader else f"node {self.target.node}"
        direction = "+" if self.target.sign > 0 else "-"
        place = f"{node}, member {self.target.member}, {direction}"
        return f"round {self.number}: {self.fault} ({place}) for {self.hold_s:.1f} s"


class RoundResult(NamedTuple):
    """How long clients and replicas took."""

    round: Round
    write_pause_s: float
    """The longest time in which a producer had no acknowledgement, from before the fault on."""
    slowest_load: str
    slowest_pause_s: float
    """The longest time in which any load had no success, and which load that was."""
    resumed_s: float
    """From healing until all loads had gone on."""
    in_sync_s: float
    """From healing until all replicas were in sync, and all loads had gone on."""

    def __str__(self) -> str:
        return (
            f"{self.round}: producers paused {self.write_pause_s:.1f} s, {self.slowest_load}"
            f" {self.slowest_pause_s:.1f} s; after healing, clients went on in"
            f" {self.resumed_s:.1f} s, replicas were in sync in {self.in_sync_s:.1f} s"
        )


class ChaosFailed(AssertionError):
    """A promise was broken, or the cluster did not heal. The cause says what happened."""

    def __init__(self, message: str, rounds: Sequence[Round]) -> None:
        super().__init__(message)
        self.rounds = rounds
        """The rounds since the last check."""


def plan_rounds(
    seed: int, rounds: int, faults: Sequence[str] = tuple(FAULTS), *, first: int = 1
) -> list[Round]:
    """Return the rounds of a seed from number `first` on.

    Each kind of fault is used once before one is repeated.
    """
    if unknown := [name for name in faults if name not in FAULTS]:
        raise ValueError(f"faults must be among {', '.join(FAULTS)}, got {', '.join(unknown)}")
    chance = random.Random(seed)  # noqa: S311 - a schedule, not a secret.
    planned: list[Round] = []
    kinds: list[str] = []
    for number in range(1, first + rounds):
        if not kinds:
            kinds = list(faults)
            chance.shuffle(kinds)
        node = chance.randrange(NODES)
        other = (node + chance.randrange(1, NODES)) % NODES
        target = FaultTarget(
            node + 1, other + 1, chance.randrange(ETCD_MEMBERS), chance.choice((1, -1))
        )
        strikes_leader = chance.random() < LEADER_SHARE
        hold_s = round(chance.uniform(HOLD_SECONDS_MIN, HOLD_SECONDS_MAX), 1)
        kind = kinds.pop()
        if kind in DONE_AT_ONCE:
            hold_s = 0.0
        planned.append(Round(number, kind, target, strikes_leader, hold_s))
    return planned[first - 1 :]


@contextmanager
def chaos_cluster(directory: Path, *, has_namespaces: bool = False) -> Iterator[RunningCluster]:
    """Run a cluster that all faults can be injected into.

    Its network is made of proxies, or of network namespaces. Where the memory of nodes cannot be
    limited, they are killed instead.
    """
    with running_cluster(
        directory,
        nodes=NODES,
        settings=SETTINGS,
        etcd_members=ETCD_MEMBERS,
        has_network=not has_namespaces,
        has_namespaces=has_namespaces,
        has_faults=True,
        has_memory_limits=why_no_memory_limit() is None,
    ) as cluster:
        cluster.wait_until_in_sync()
        yield cluster


def run_rounds(
    cluster: RunningCluster,
    rounds: Sequence[Round],
    *,
    check_every: int = CHECK_EVERY,
    report: Callable[[str], None] = lambda _: None,
    checked: Callable[[Sequence[RoundResult]], None] = lambda _: None,
    spark: SparkSession | None = None,
) -> list[RoundResult]:
    """Run rounds, and check what loads were told and what replicas have. Raises `ChaosFailed`.

    `checked` is called after each check, with the results of the rounds before it. With `spark`, a
    streaming query is one of the loads.
    """
    results: list[RoundResult] = []
    for start in range(0, len(rounds), check_every):
        part = rounds[start : start + check_every]
        try:
            found = _run_checked(cluster, part, report, spark)
        except ChaosFailed:
            raise
        except Exception as error:
            raise ChaosFailed(_failure(error, "the check after", part), part) from error
        checked(found)
        results += found
    return results


def _failure(error: Exception, place: str, rounds: Sequence[Round]) -> str:
    names = "\n".join(f"  {planned}" for planned in rounds)
    return f"{type(error).__name__}: {error}\nin {place}\n{names}"


def _run_checked(
    cluster: RunningCluster,
    rounds: Sequence[Round],
    report: Callable[[str], None],
    spark: SparkSession | None,
) -> list[RoundResult]:
    name = f"rounds-{rounds[0].number}"
    kinds = TOPICS if spark is None else (*TOPICS, COPY)
    topics = [f"{name}-{kind}" for kind in kinds]
    with KafkaClient(cluster.bootstrap) as client:
        for topic in topics:
            client.create_topic(topic, partitions=PARTITIONS)
    loads = make_loads(cluster, name, spark)
    for load in loads:
        load.start()
    try:
        wait_for_more(loads)
        results = []
        for index, planned in enumerate(rounds):
            try:
                results.append(run_round(cluster, loads, planned, topics[0]))
            except Exception as error:
                done = rounds[: index + 1]
                failure = _failure(error, "the last of these rounds", done)
                raise ChaosFailed(failure, done) from error
            report(str(results[-1]))
    finally:
        for load in loads:
            load.is_stopping = True
    began = time.monotonic()
    for load in loads:
        load.stop()
    with ThreadPoolExecutor(max_workers=len(loads)) as threads:  # They mostly wait for nodes.
        list(threads.map(Load.check, loads))
    cluster.check_replicas(*topics, seconds=SAME_SECONDS_MAX)
    count = sum(load.count for load in loads)
    remove_topics(cluster, name, kinds)
    seconds = time.monotonic() - began
    report(
        f"{count} successes of {len(loads)} loads: no rule is broken (checked in {seconds:.1f} s)"
    )
    return results


def make_loads(cluster: RunningCluster, name: str, spark: SparkSession | None = None) -> list[Load]:
    """Return all kinds of loads, which are not started. `name` is the prefix of their topics."""
    bootstrap, urls, logs = cluster.bootstrap, cluster.urls, cluster.nodes[1].log.parent
    loads: list[Load] = [
        IdempotentLoad(bootstrap, f"{name}-idempotent"),
        TransactionLoad(bootstrap, f"{name}-transactions", logs),
        GroupLoad(bootstrap, f"{name}-idempotent", "classic", logs),
        GroupLoad(bootstrap, f"{name}-idempotent", "consumer", logs),
        AppendLoad(urls, bootstrap, f"{name}-appends", tolerated=TOLERATED),
        WatchLoad(urls, bootstrap, f"{name}-appends"),
        QueueLoad(urls, f"{name}-jobs", tolerated=TOLERATED),
        StreamLoad(urls, f"{name}-stream"),
    ]
    if spark is not None:
        # Here and not above: pyspark is not always installed.
        from millstream.testing.cluster.loads.spark import SparkLoad  # noqa: PLC0415

        topics = f"{name}-{TOPICS[0]}", f"{name}-{COPY}"
        loads.append(SparkLoad(spark, bootstrap, *topics, logs / f"{name}-checkpoint"))
    return loads


def remove_topics(cluster: RunningCluster, name: str, kinds: Sequence[str] = TOPICS) -> None:
    """Delete what loads have made, so that many rounds do not need more and more partitions."""
    with millstream.Client(cluster.urls, config=CONFIG) as client:
        client.queue(f"{name}-jobs").delete()
        for topic in (*kinds, "stream"):  # The topic of a stream is the stream.
            client.topic(f"{name}-{topic}").delete()


def run_round(
    cluster: RunningCluster, loads: Sequence[Load], planned: Round, topic: str
) -> RoundResult:
    """Inject a fault, hold it, heal it, and wait until everything goes on.

    `topic` is that whose leader is struck.
    """
    target = planned.target
    if planned.strikes_leader:
        leader = cluster.leader(topic, target.node % PARTITIONS)
        other = target.node if leader == target.other else target.other
        target = target._replace(node=leader, other=other)
    for load in loads:
        load.take_pause()
    try:
        FAULTS[planned.fault](cluster, target)
        time.sleep(planned.hold_s)
    finally:
        cluster.heal()
    healed = time.monotonic()
    wait_for_more(loads)
    resumed = time.monotonic()
    cluster.wait_until_caught_up()
    in_sync = time.monotonic()
    pauses = [(load.take_pause(), load) for load in loads]
    slowest_s, slowest = max(pauses, key=itemgetter(0))
    return RoundResult(
        planned,
        max(pause for pause, load in pauses if isinstance(load, IdempotentLoad | AppendLoad)),
        str(slowest),
        slowest_s,
        resumed - healed,
        in_sync - healed,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m millstream.testing.cluster.chaos",
        description="Inject faults into a cluster under load, and check that nothing is lost.",
    )
    parser.add_argument("--rounds", type=_positive, default=20, help="Faults. Default: 20.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the schedule. Default: 0.")
    parser.add_argument("--first", type=_positive, default=1, help="First round. Default: 1.")
    parser.add_argument(
        "--faults", default=",".join(FAULTS), help="Kinds of faults, with commas. Default: all."
    )
    parser.add_argument(
        "--check-every",
        type=_positive,
        default=CHECK_EVERY,
        help=f"Rounds between two checks. Default: {CHECK_EVERY}.",
    )
    parser.add_argument(
        "--network",
        choices=("auto", "namespaces", "proxies"),
        default="auto",
        help="What cuts connections: the kernel, which needs root, or proxies. Default: auto,"
        " which is proxies.",
    )
    parser.add_argument(
        "--spark",
        action="store_true",
        help="Also run a streaming query of Spark, which needs pyspark and Java.",
    )
    parser.add_argument(
        "--campaign", help="File of checked rounds: they are not run again, and all are summed up."
    )
    parser.add_argument("--directory", help="For data and logs; kept. Default: a temporary one.")
    options = parser.parse_args(arguments)
    try:
        rounds = plan_rounds(
            options.seed, options.rounds, options.faults.split(","), first=options.first
        )
        campaign = Campaign(Path(options.campaign)) if options.campaign else None
    except ValueError as error:
        parser.error(str(error))
    if campaign is not None:
        rounds = [planned for planned in rounds if not campaign.has(options.seed, planned.number)]
        if not rounds:
            _print("\n".join(campaign.summary()))
            return 0
    has_namespaces = options.network == "namespaces"
    if has_namespaces and (reason := why_unavailable()) is not None:
        parser.error(f"--network namespaces: {reason}")
    # Clients log each attempt that failed; here many are meant to.
    logging.getLogger("millstream").setLevel(logging.CRITICAL)
    if (reason := why_no_memory_limit()) is not None:
        _print(f"memory-limit kills nodes at once: {reason}")
    directory = Path(options.directory or tempfile.mkdtemp(prefix="millstream-chaos-"))
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            spark = stack.enter_context(_spark_session()) if options.spark else None
            cluster = stack.enter_context(chaos_cluster(directory, has_namespaces=has_namespaces))
            results = run_rounds(
                cluster,
                rounds,
                check_every=options.check_every,
                report=_print,
                checked=lambda found: _note_checked(campaign, options.seed, found),
                spark=spark,
            )
    except ChaosFailed as error:
        if campaign is not None:
            campaign.add([failed_rounds(options.seed, error)])
        _print(f"FAILED {error}")
        _print(f"data and logs are in {directory}")
        _print(f"to repeat it: {_command(options)}")
        return 1
    pauses = sorted(result.write_pause_s for result in results)
    _print(
        f"seed {options.seed}: {len(results)} rounds in {time.monotonic() - began:.0f} s;"
        f" producers paused {pauses[len(pauses) // 2]:.1f} s (median), {pauses[-1]:.1f} s (longest)"
    )
    if campaign is not None:
        _print("\n".join(campaign.summary()))
    if options.directory is None:
        shutil.rmtree(directory)
    return 0


def checked_round(seed: int, result: RoundResult) -> CheckedRound:
    """Return what a campaign keeps of a round."""
    return CheckedRound(
        seed=seed,
        number=result.round.number,
        fault=result.round.fault,
        write_pause_s=round(result.write_pause_s, 3),
        slowest_load=result.slowest_load,
        slowest_pause_s=round(result.slowest_pause_s, 3),
        resumed_s=round(result.resumed_s, 3),
        in_sync_s=round(result.in_sync_s, 3),
    )


def failed_rounds(seed: int, error: ChaosFailed) -> FailedRounds:
    """Return what a campaign keeps of a failure."""
    numbers = [planned.number for planned in error.rounds]
    return FailedRounds(seed, min(numbers), max(numbers), str(error).splitlines()[0])


def _note_checked(campaign: Campaign | None, seed: int, found: Sequence[RoundResult]) -> None:
    if campaign is not None:
        campaign.add(checked_round(seed, result) for result in found)


def _spark_session() -> AbstractContextManager[SparkSession]:
    from millstream.spark.session import running_session  # noqa: PLC0415 - imports pyspark.

    return running_session("millstream chaos", "local[2,3]", {"spark.sql.shuffle.partitions": "2"})


def _command(options: argparse.Namespace) -> str:
    """Return the command line with which these rounds are run again."""
    names = ("seed", "first", "rounds", "check_every", "faults", "network")
    values = {name: getattr(options, name) for name in names}
    if values["faults"] == ",".join(FAULTS):
        del values["faults"]
    if values["network"] == "auto":
        del values["network"]
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in values.items()]
    if options.spark:
        flags.append("--spark")
    return " ".join(["python -m millstream.testing.cluster.chaos", *flags])


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
