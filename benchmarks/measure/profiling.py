"""Where a node spends its time: samples of its stacks, taken by py-spy from outside.

Nothing in the node knows of it. py-spy needs leave to look into another process, as it has where
both are of one user and the kernel does not forbid it, or for root.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

NODE = "millstream"
SAMPLES_PER_SECOND = 200
FUNCTIONS = 40
"""How many are listed."""

WAITING = ("ThreadExecutor._serve", "_worker", "Condition.wait", "EventWriter._run")
"""Where threads wait for work. They are sampled too, and left out."""

_folder: Path | None = None
_numbers = itertools.count(1)


def profile_into(folder: Path) -> None:
    """From here on, have every node sampled; the texts go to `folder`."""
    global _folder  # noqa: PLW0603 - a switch of the whole run.
    _folder = folder


@contextmanager
def profiled(pid: int, command: str) -> Iterator[None]:
    """Sample a process while the block lasts, if that is wanted and it is a node."""
    if _folder is None or command != NODE:
        yield
        return
    stem = _folder / f"profile-{next(_numbers)}"
    stacks = stem.with_suffix(".stacks")
    process = subprocess.Popen(_sampler(pid, stacks), stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    if stacks.exists():
        text = summary(stacks.read_text().splitlines())
        stem.with_suffix(".txt").write_text(text)
        print(f"profile: {stem}.txt, stacks beside it", file=sys.stderr)


def _sampler(pid: int, stacks: Path) -> list[str]:
    found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if found is None:
        raise FileNotFoundError("py-spy is not installed; it is in the dev group of pyproject.toml")
    rate = str(SAMPLES_PER_SECOND)
    return [found, "record", "--pid", str(pid), "--rate", rate, "-f", "raw", "-o", str(stacks)]


def summary(stacks: Iterable[str]) -> str:
    """Say which functions were running, and which were waiting for what they called.

    A line is a stack, outermost first: `function (file:line);function (file:line) count`.
    """
    alone: Counter[str] = Counter()
    with_calls: Counter[str] = Counter()
    total = 0
    for line in stacks:
        stack, _, number = line.rpartition(" ")
        names = [_name(frame) for frame in stack.split(";")]
        if names[-1].startswith(WAITING):
            continue
        count = int(number)
        total += count
        alone[names[-1]] += count
        for name in set(names):
            with_calls[name] += count
    lines = [
        f"{total} samples while it was busy. Share alone, share with all it calls, function.\n"
    ]
    for name, count in alone.most_common(FUNCTIONS):
        lines.append(f"{count / total:7.1%} {with_calls[name] / total:7.1%}  {name}\n")
    lines.append("\nThe same, by the share with all that a function calls.\n")
    for name, count in with_calls.most_common(FUNCTIONS):
        lines.append(f"{alone[name] / total:7.1%} {count / total:7.1%}  {name}\n")
    return "".join(lines)


def _name(frame: str) -> str:
    """Return a function without the line that it was at."""
    name, _, rest = frame.partition(" (")
    return f"{name} ({rest.partition(':')[0].rstrip(')')})"
