"""Lists of processors, written as the kernel writes them: `0-3,6`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import chain, pairwise
from typing import Any

CPU_MAX = 8_191
"""The highest number of a processor: Linux is built for at most 8,192 of them."""

CPUS_WORDS = f"processors and ranges of them, such as 0-3,6, with numbers from 0 to {CPU_MAX}"

_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the processors of a list, in order; raises `ValueError` if it is none."""
    return tuple(sorted(set(chain.from_iterable(map(_parse_range, text.split(","))))))


def _parse_range(text: str) -> range:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a processor or a range of them: {text!r}")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if not first <= last <= CPU_MAX:
        raise ValueError(f"not a range of processors: {text!r}")
    return range(first, last + 1)


def format_cpus(cpus: Collection[int]) -> str:
    """Return the list of some processors, as short as possible."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1][1:] = [cpu]
        else:
            ranges.append([cpu])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def are_cpus(value: Any) -> bool:
    """Return whether `value` is a tuple of processors, in order and without repetitions."""
    return (
        isinstance(value, tuple)
        and all(type(cpu) is int and 0 <= cpu <= CPU_MAX for cpu in value)
        and list(value) == sorted(set(value))
    )


def deal_cpus(cpus: Sequence[int], processes: int) -> list[tuple[int, ...]]:
    """Return the processors of each of several processes, or nothing for each if there are none.

    Each process gets neighbours, which often share a cache. If there are fewer processors than
    processes, some processes share one.
    """
    count = len(cpus)
    if not count:
        return [()] * processes
    if count < processes:
        return [(cpus[number % count],) for number in range(processes)]
    ends = [number * count // processes for number in range(processes + 1)]
    return [tuple(cpus[start:end]) for start, end in pairwise(ends)]
