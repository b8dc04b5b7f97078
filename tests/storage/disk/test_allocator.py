"""Memory of large buffers stays with the process, in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from millstream.storage.disk.allocator import keep_freed_memory

assert keep_freed_memory() is {expected}
def use():
    kept = [b"x" * (4 * 1024 * 1024 + n) for n in range(3)]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, expected: bool, environment: dict[str, str]) -> int:
    return int(
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(expected=expected)],
            env={"PYTHONPATH": ":".join(sys.path), **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is a setting of glibc")
def test_large_buffers_are_allocated_without_page_faults():
    assert faults(expected=True, environment={}) < 5_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is a setting of glibc")
def test_settings_of_the_operator_take_precedence():
    assert faults(expected=False, environment={"MALLOC_TRIM_THRESHOLD_": "131072"}) > 50_000
