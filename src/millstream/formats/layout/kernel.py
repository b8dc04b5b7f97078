"""Compilation of the kernels of this package. Needs Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile on first use, and cache the result on disk if a cache directory is writable.

    As `records/kernels/compiler.py` does, but without reference counting (`_nrt`). These kernels
    pass tuples of a dozen arrays to each other for every field; counting references of each costs
    seven times as much as the decoding. None of them allocates an array, so there is nothing to
    count: the caller holds the arrays.
    """
    for options in ({"cache": True, "_nrt": False}, {"_nrt": False}, {}):
        try:
            return cast("F", numba.njit(nogil=True, **cast("Any", options))(function))
        except (RuntimeError, KeyError):
            continue  # No directory for a cache is writable, or this Numba always counts.
    raise AssertionError(function)
