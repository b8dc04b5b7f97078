"""Benchmarks of Millstream, beside the limit of the machine and its peers in the same run.

    python benchmarks/run.py                                        every subject, every peer
    python benchmarks/run.py --subject log --quick                  one of them, in a few minutes
    python benchmarks/run.py --subject kafka --peers kafka,redis    beside these, or `none`
    python benchmarks/run.py --subject kafka --only small --profile  where the node spends its time
    python benchmarks/run.py --subject cluster --only fail-over --rounds 1   one round of some rows
    python benchmarks/run.py --report [FILE ...]                    what the documentation shows

A subject is a module in `subjects/` with a tuple of `EXPERIMENTS`; `subjects/example.py` is the
smallest one. For each, a table is printed, and JSON, a plot and a Markdown report are written to
`benchmarks/results/` of the current directory. The data is in a folder there, so that it is on a
real disk, and is removed at the end.

`--report` copies the JSON of a run to `benchmarks/published/`, and writes the page of the
documentation again; without files it only writes the page.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from measure.experiment import Experiment, Scale, run_experiment
from measure.machine import Watch, machine_facts
from measure.page import PAGE, PUBLISHED, publish
from measure.peers import PeerMissing, Peers
from measure.plot import draw_plot
from measure.profiling import profile_into
from measure.report import Report, facts_list, printed_table, write_markdown
from measure.rows import Outcome
from measure.scratch import scratch_folder
from measure.stored import write_json
from peers import PEERS, STARTS
from peers.connector import bring_connector

SUBJECTS = (
    *("machine", "log", "kafka", "http", "queues", "life", "start", "memory", "growth", "claims"),
    *("formats", "processes", "spark", "lake", "cluster"),
)
"""Subjects that are measured by default: all but the example."""

RESULTS = Path("benchmarks", "results")


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated by SIGTERM"))
    if arguments.report is not None:
        publish(arguments.report, PUBLISHED, PAGE)
        return
    results: Path = arguments.results
    results.mkdir(parents=True, exist_ok=True)
    if arguments.profile:
        profile_into(results)
    subjects = arguments.subject or SUBJECTS
    if "spark" in subjects and "kafka" in arguments.peers:
        with contextlib.suppress(PeerMissing):  # Which is reported where it is needed.
            bring_connector()
    for subject in subjects:
        run_subject(
            subject,
            arguments.scale,
            results,
            arguments.peers,
            only=arguments.only,
            rounds=arguments.rounds,
        )


def run_subject(
    subject: str,
    scale: Scale,
    results: Path,
    asked: Collection[str],
    *,
    only: str = "",
    rounds: int | None = None,
) -> None:
    """Measure one subject, print its table and write its files to `results`."""
    experiments = importlib.import_module(f"subjects.{subject}").EXPERIMENTS
    chosen = [experiment for experiment in experiments if only in experiment.title]
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    started = time.monotonic()
    with scratch_folder(results) as folder, Peers(STARTS, asked, folder) as peers:
        facts = machine_facts(folder)
        watch = Watch()
        outcomes = _outcomes(chosen, scale, folder, peers, rounds)
        facts |= watch.facts() | peers.facts()
    report = Report(
        subject=subject,
        scale=scale.value,
        date=date,
        seconds=time.monotonic() - started,
        facts=facts,
        notes={experiment.title: experiment.note for experiment in chosen},
        outcomes=outcomes,
    )
    stem = results / f"{subject}-{scale.value}{'-part' if only else ''}"
    print(f"{facts_list(report)}\n\n{printed_table(report)}\n")
    write_json(report, stem.with_suffix(".json"))
    draw_plot(report, stem.with_suffix(".png"))
    write_markdown(report, stem.with_suffix(".md"))
    print(f"{report.seconds:.0f} s; written: {stem}.json, .png, .md")


def _outcomes(
    experiments: Sequence[Experiment],
    scale: Scale,
    folder: Path,
    peers: Peers,
    rounds: int | None,
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for number, experiment in enumerate(experiments):
        started = time.monotonic()
        print(f"{experiment.title} ... ", end="", flush=True, file=sys.stderr)
        place = folder / str(number)
        place.mkdir()
        outcomes += run_experiment(experiment, scale, place, peers, rounds)
        print(f"{time.monotonic() - started:.1f} s", file=sys.stderr)
    return outcomes


def _peers(text: str) -> Collection[str]:
    if text in ("all", "none"):
        return PEERS if text == "all" else ()
    names = text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(
            f"unknown peer {', '.join(unknown)}; the peers are {', '.join(PEERS)}, all, none"
        )
    return names


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, got {text}")
    return int(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--subject", action="append", help=f"one of: {', '.join(SUBJECTS)}")
    parser.add_argument("--only", default="", help="only experiments with this text in their title")
    parser.add_argument(
        "--rounds",
        type=_positive,
        metavar="N",
        help="how often each arm has its turn; default: as the experiment says",
    )
    parser.add_argument(
        "--peers",
        type=_peers,
        default=PEERS,
        help=f"peers to measure beside us: some of {','.join(PEERS)}, or none; default: all",
    )
    parser.add_argument(
        "--report",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="publish these results, and write their page in the documentation",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="profile the nodes with py-spy; the figures of such a run are too low",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: %(default)s")
    sizes = parser.add_mutually_exclusive_group()
    for scale, meaning in (
        (Scale.QUICK, "fewer repetitions and less data"),
        (Scale.SMOKE, "a minimal run whose figures mean nothing: checks that everything runs"),
    ):
        sizes.add_argument(
            f"--{scale.value}",
            dest="scale",
            action="store_const",
            const=scale,
            default=Scale.FULL,
            help=meaning,
        )
    return parser.parse_args()


if __name__ == "__main__":
    main()
