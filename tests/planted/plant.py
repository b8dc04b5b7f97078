"""Plants known bugs, one at a time, and shows that the suite catches each.

`make planted` runs this. A patch in this folder breaks one promise. Its first lines say which, and
name the tests that must fail:

    Promise: what is broken.
    Caught by: tests/storage/test_append.py tests/crash/test_power_cut.py::test_name

Each patch is applied to a copy of the tree, so the tree itself is never touched. The named tests
run once without any patch first: a test that fails anyway catches nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COPIED = ("src", "tests", "deploy", "benchmarks/measure", "pyproject.toml", "README.md")
SECONDS_MAX = 900
TEST_SECONDS_MAX = 120
"""A bug may make a test wait for ever; that is caught too."""

MEMORY_BYTES_MAX = 8 * 1024**3
"""A bug may make a test take all memory there is; that is caught too, and harms nobody else."""


@dataclass(frozen=True)
class Patch:
    """One bug."""

    path: Path
    promise: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the bug is called."""
        return self.path.stem


def main() -> int:
    """Plant the bugs that were asked for, or all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="Which bugs to plant; all where none is named.")
    names = parser.parse_args().names
    patches = [read_patch(path) for path in sorted(HERE.glob("*.patch"))]
    chosen = [patch for patch in patches if not names or patch.name in names]
    if not chosen:
        print(f"no such bug; there are: {', '.join(patch.name for patch in patches)}")
        return 2
    # A browser reserves far more than it ever uses, and lifts this for itself.
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, most))
    if not is_sound(chosen):
        print("the tests fail without any bug planted")
        return 1
    missed = [patch.name for patch in chosen if not is_caught(patch)]
    print(f"\n{len(chosen) - len(missed)} of {len(chosen)} planted bugs caught")
    for name in missed:
        print(f"not caught: {name}")
    return 1 if missed else 0


def read_patch(path: Path) -> Patch:
    """Read what stands before the diff."""
    head = path.read_text().partition("\ndiff --git")[0]
    promise = re.search(r"^Promise: (.*?)$", head, re.MULTILINE)
    tests = re.search(r"^Caught by: (.*?)$", head, re.MULTILINE)
    if promise is None or tests is None:
        raise SystemExit(f"{path.name}: needs a line 'Promise: ' and a line 'Caught by: '")
    return Patch(path, promise[1], tuple(tests[1].split()))


def is_sound(patches: Sequence[Patch]) -> bool:
    """Whether the named tests pass as long as nothing is broken."""
    tests = sorted({test for patch in patches for test in patch.tests})
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        result = run_tests(Path(folder), ["-n", "auto", *tests])
    print(f"without a bug: {last_line(result)}", flush=True)
    return result.returncode == 0


def is_caught(patch: Patch) -> bool:
    """Whether the named tests fail with the bug in place, by failing and not by crashing."""
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        command = ["git", "apply", "--unsafe-paths", str(patch.path)]
        if subprocess.run(command, cwd=folder, check=False).returncode != 0:
            print(f"MISSED: {patch.name}: the patch does not apply any more", flush=True)
            return False
        result = run_tests(Path(folder), patch.tests)
    caught = result.returncode == 1
    print(f"{'caught' if caught else 'MISSED'}: {patch.name}: {patch.promise}", flush=True)
    print(f"    {last_line(result)}", flush=True)
    return caught


def copy_tree(folder: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules")
            )
        else:
            shutil.copy(source, folder / name)


def run_tests(folder: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the tree, up to the first failure."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS_MAX)]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    """What pytest closes with, and the first test that failed."""
    lines = result.stdout.strip().splitlines()
    failed = [line for line in lines if line.startswith("FAILED")]
    return "; ".join([*failed[:1], *lines[-1:]])[:200] if lines else result.stderr[-200:]


if __name__ == "__main__":
    sys.exit(main())
