"""How the loops of this package are compiled. Needs Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile on first use, and keep the result on disk where there is a place for it.

    As in `records/kernels/compiler.py`, but without counting references. These loops hand
    tuples of a dozen arrays to each other for every field; counting each of them up and down costs
    seven times as
    much as the reading. None of them makes an array, so there is nothing to count: the caller
    holds what they work on.
    """
    for options in ({"cache": True, "_nrt": False}, {"_nrt": False}, {}):
        try:
            return cast("F", numba.njit(nogil=True, **cast("Any", options))(function))
        except (RuntimeError, KeyError):
            continue  # No directory for a cache is writable, or this Numba always counts.
    raise AssertionError(function)
