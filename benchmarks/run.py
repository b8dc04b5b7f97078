"""Measures what Millstream claims, each figure beside the limit of the machine in the same run.

    python benchmarks/run.py                          every subject
    python benchmarks/run.py --subject log --quick    one of them, in under two minutes

A subject is a module in `subjects/` with a tuple of `EXPERIMENTS`; `subjects/example.py` is the
smallest there can be. For each, a table is printed, and JSON, a plot and a Markdown report are
left in `benchmarks/results/` of the current directory. What is measured lies in a folder there,
so that it is on a real disk, and is removed at the end.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measure.experiment import Experiment, Outcome, Scale, run_experiment
from measure.machine import Watch, machine_facts
from measure.plot import draw_plot
from measure.report import Report, printed_table, write_json, write_markdown
from measure.scratch import scratch_folder

SUBJECTS = ("log", "kafka", "http", "queues", "life", "spark")
"""What is measured when no subject is named. The example is not worth it."""

RESULTS = Path("benchmarks", "results")


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    results: Path = arguments.results
    results.mkdir(parents=True, exist_ok=True)
    for subject in arguments.subject or SUBJECTS:
        run_subject(subject, arguments.scale, results, only=arguments.only)


def run_subject(subject: str, scale: Scale, results: Path, *, only: str = "") -> None:
    """Measure one subject, print its table and leave its files in `results`."""
    experiments = importlib.import_module(f"subjects.{subject}").EXPERIMENTS
    chosen = [experiment for experiment in experiments if only in experiment.title]
    started = time.monotonic()
    with scratch_folder(results) as folder:
        facts = machine_facts(folder)
        watch = Watch()
        outcomes = _outcomes(chosen, scale, folder)
        facts |= watch.facts()
    report = Report(
        subject=subject,
        scale=scale.value,
        seconds=time.monotonic() - started,
        facts=facts,
        experiments=chosen,
        outcomes=outcomes,
    )
    stem = results / f"{subject}-{scale.value}{'-part' if only else ''}"
    print("\n".join(f"{name}: {fact}" for name, fact in report.facts.items()))
    print(f"\n{printed_table(report)}\n")
    write_json(report, stem.with_suffix(".json"))
    draw_plot(report, stem.with_suffix(".png"))
    write_markdown(report, stem.with_suffix(".md"))
    print(f"{report.seconds:.0f} s; written: {stem}.json, .png, .md")


def _outcomes(experiments: Sequence[Experiment], scale: Scale, folder: Path) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for number, experiment in enumerate(experiments):
        started = time.monotonic()
        print(f"{experiment.title} ... ", end="", flush=True, file=sys.stderr)
        place = folder / str(number)
        place.mkdir()
        outcomes += run_experiment(experiment, scale, place)
        print(f"{time.monotonic() - started:.1f} s", file=sys.stderr)
    return outcomes


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--subject", action="append", help=f"one of: {', '.join(SUBJECTS)}")
    parser.add_argument("--only", default="", help="only experiments with this text in their title")
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: %(default)s")
    sizes = parser.add_mutually_exclusive_group()
    for scale, meaning in (
        (Scale.QUICK, "fewer repetitions and less data"),
        (Scale.SMOKE, "so little that the figures mean nothing: shows that everything runs"),
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
