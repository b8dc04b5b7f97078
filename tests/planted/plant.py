"""Plant known bugs, one at a time, and show that the tests catch each of them.

    python tests/planted/plant.py                   all bugs; this is `make planted`
    python tests/planted/plant.py NAME ... --jobs 1  some of them, one after the other
    python tests/planted/plant.py --check           only check that each bug finds its place
    python tests/planted/plant.py --relocate        and write down the paths of moved files

A bug breaks one promise and names the tests that must fail; `bugs.py` describes the format. Each
job works in its own copy of the tree and undoes every bug, so the tree itself never changes. The
named tests run once without a bug first, because a test that always fails catches nothing.

A bug is caught if a test fails. It is missed if the tests pass, cannot be collected or started, or
do not end in time. The exit status is 0 if every bug is caught, 1 if not, and 2 for a usage error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from bugs import (
    SKIPPED,
    BadFormat,
    Bug,
    Tree,
    edited_files,
    has_test,
    problems,
    read_bug,
    relocated,
)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COPIED = ("src", "tests", "deploy", "benchmarks/measure", "pyproject.toml", "README.md")
SOUND_SECONDS_MAX = 3600
SECONDS_MAX = 900
TEST_SECONDS_MAX = 120
"""A bug may make a test hang. A test that takes longer than this fails, so the bug is caught."""

MEMORY_BYTES_MAX = 8 * 1024**3
"""A bug may make a test allocate without limit. The allocation fails, so the bug is caught."""

SHOWN_LINES = 40
COLLECTION_ERROR = re.compile(r"^_+ ERROR collecting .* _+$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """How a run of pytest ended."""

    status: int | None
    """The exit status, or None if the run took too long and was killed."""

    output: str
    seconds: float

    @property
    def is_failure(self) -> bool:
        """Whether a test failed, as opposed to a test file that could not be imported.

        With -x, pytest exits with 1 for both if a file that cannot be imported is not the last.
        """
        return self.status == 1 and COLLECTION_ERROR.search(self.output) is None

    @property
    def result(self) -> str:
        """The first test that failed, or else the last line of the output."""
        lines = self.output.strip().splitlines() or ["no output"]
        failed = [line for line in lines if line.startswith(("FAILED tests/", "ERROR tests/"))]
        return (failed or lines[-1:])[0][:160]

    @property
    def details(self) -> str:
        """The exit status and the end of the output, indented."""
        ended = "took too long" if self.status is None else f"pytest exit status {self.status}"
        lines = [ended, *self.output.strip().splitlines()[-SHOWN_LINES:]]
        return "\n".join(f"    {line}" for line in lines)


class Workspace:
    """A copy of the tree in which one job plants its bugs."""

    def __init__(self, folder: Path, root: Path = ROOT, parts: Sequence[str] = COPIED) -> None:
        self.folder = folder
        folder.mkdir()
        for part in parts:
            if (root / part).is_dir():
                ignored = shutil.ignore_patterns(*SKIPPED)
                shutil.copytree(root / part, folder / part, ignore=ignored)
            elif (root / part).exists():
                shutil.copy(root / part, folder / part)
        self.tree = Tree(folder, parts)
        self._names = set(os.listdir(folder))
        self._process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """Plant a bug, and restore the copy at the end."""
        files = edited_files(self.tree, bug)
        originals = {path: (self.folder / path).read_bytes() for path in files}
        try:
            for path, text in files.items():
                self._write(path, text.encode())
            yield
        finally:
            for path, content in originals.items():
                self._write(path, content)
            self.tidy()

    def _write(self, path: str, content: bytes) -> None:
        file = self.folder / path
        file.write_bytes(content)
        # Python compares only the size and the second of the change, and both may be the same.
        for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            cached.unlink()

    def tidy(self) -> None:
        """Remove what a run left behind: the examples of Hypothesis, compiled kernels."""
        for name in set(os.listdir(self.folder)) - self._names:
            left = self.folder / name
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()

    def run(self, tests: Sequence[str], *options: str, seconds_max: float = SECONDS_MAX) -> Run:
        """Run tests in this copy, up to the first failure."""
        always = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS_MAX)]
        command = [sys.executable, "-m", "pytest", *always, *options, *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src")}
        # A kernel is compiled together with those that it calls, but cached by its own file only.
        environment["NUMBA_CACHE_DIR"] = str(self.folder / ".numba")
        started = time.monotonic()
        # The output goes to a file: a pipe would stay open as long as any node that a test started.
        with tempfile.TemporaryFile() as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
            status: int | None = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(seconds_max)
            self.stop()
            self._process.wait()
            self._process = None
            output.seek(0)
            text = output.read().decode(errors="replace")
        return Run(status, text, time.monotonic() - started)

    def stop(self) -> None:
        """Kill the tests that are running, and the processes that they started."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="Bugs to plant. Default: all.")
    parser.add_argument("--jobs", type=int, default=2, help="Bugs to try at a time. Default: 2.")
    parser.add_argument("--check", action="store_true", help="Only check that bugs can be planted.")
    parser.add_argument("--relocate", action="store_true", help="Update the paths of moved files.")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    sources = {source.stem: source for source in sorted(HERE.glob("*.bug"))}
    if unknown := [name for name in options.names if name not in sources]:
        parser.error(f"no such bug: {', '.join(unknown)}; there are: {', '.join(sources)}")
    chosen = [source for name, source in sources.items() if name in (options.names or sources)]
    try:
        if options.relocate:
            relocate(chosen)
        bugs = [read_bug(source) for source in chosen]
    except BadFormat as error:
        print(error)
        return 1
    if options.check or options.relocate:
        return check(bugs)
    try:
        return plant(bugs, options.jobs)
    except KeyboardInterrupt:
        print("interrupted")
        return 130


def relocate(sources: Sequence[Path]) -> None:
    """Write the paths at which the edits and tests of bugs were found into the bug files."""
    tree = Tree(ROOT, COPIED)
    for source in sources:
        old = source.read_bytes().decode()
        new = relocated(tree, read_bug(source), old)
        if new != old:
            source.write_bytes(new.encode())
            print(f"relocated: {source.stem}")
            for before, after in zip(old.split("\n"), new.split("\n"), strict=True):
                if before != after:
                    print(f"    {before}\n    {after}")


def check(bugs: Sequence[Bug]) -> int:
    """Print what keeps bugs from being planted; return the exit status."""
    tree = Tree(ROOT, COPIED)
    messages = {bug.name: problems(tree, bug) for bug in bugs}
    for message in [message for found in messages.values() for message in found]:
        print(message)
    good = sum(not found for found in messages.values())
    print(f"{good} of {len(bugs)} planted bugs find their place")
    return 0 if good == len(bugs) else 1


def plant(bugs: Sequence[Bug], jobs: int) -> int:
    """Plant bugs, several at a time, and print what became of each; return the exit status."""
    # The tests inherit the limit. A browser reserves more than it uses, and lifts it for itself.
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, most))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        spaces = [Workspace(Path(folder) / str(job)) for job in range(min(jobs, len(bugs)))]
        try:
            if not is_sound(spaces[0], bugs, jobs):
                print("the tests fail without a planted bug")
                return 1
            missed = plant_all(spaces, bugs)
        except BaseException:
            for space in spaces:
                space.stop()
            raise
    print(f"\n{len(bugs) - len(missed)} of {len(bugs)} planted bugs caught")
    for name in sorted(missed):
        print(f"not caught: {name}")
    return 1 if missed else 0


def is_sound(space: Workspace, bugs: Sequence[Bug], jobs: int) -> bool:
    """Whether the named tests pass as long as no bug is planted."""
    # A test that does not exist makes only its own bug a miss.
    tests = {test for bug in bugs for test in bug.tests if has_test(space.tree, test)}
    named = sorted(test for test in tests if "::" not in test or test.split("::")[0] not in tests)
    run = space.run(named, "-n", str(jobs), "--dist", "worksteal", seconds_max=SOUND_SECONDS_MAX)
    space.tidy()
    print(f"without a bug: {run.seconds:.0f} s: {run.result}", flush=True)
    if run.status != 0:
        print(run.details, flush=True)
    return run.status == 0


def plant_all(spaces: Sequence[Workspace], bugs: Sequence[Bug]) -> list[str]:
    """Plant each bug in one of the copies; return the names of those that were missed."""
    free: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
    for space in spaces:
        free.put(space)

    def try_next(bug: Bug) -> tuple[bool, str]:
        space = free.get()
        try:
            return try_bug(space, bug)
        finally:
            free.put(space)

    missed = []
    with ThreadPoolExecutor(len(spaces)) as pool:
        try:
            tries = {pool.submit(try_next, bug): bug for bug in bugs}
            for number, done in enumerate(as_completed(tries), 1):
                is_caught, message = done.result()
                print(f"{number}/{len(bugs)} {message}", flush=True)
                if not is_caught:
                    missed.append(tries[done].name)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for space in spaces:
                space.stop()
            raise
    return missed


def try_bug(space: Workspace, bug: Bug) -> tuple[bool, str]:
    """Plant a bug and run its tests; return whether they catch it, and a message."""
    if messages := problems(space.tree, bug):
        return False, "\n".join(f"MISSED {message}" for message in messages)
    with space.planted(bug):
        run = space.run(bug.tests)
    if run.is_failure:
        return True, f"caught {bug.name}: {run.seconds:.0f} s: {run.result}"
    missed = f"MISSED {bug.name}: {run.seconds:.0f} s: {bug.promise}"
    return False, f"{missed}\n{run.details}"


if __name__ == "__main__":
    sys.exit(main())
