"""Compilation of kernels with Numba, and the array types that they take.

A kernel is a Python function over arrays and numbers that Numba compiles to machine code. Kernels
do not hold the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Octets: TypeAlias = NDArray[np.uint8]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` at its first call, and cache the machine code on disk if possible."""
    try:
        return cast("F", numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # Neither the package's directory nor the user's cache is writable.
        return cast("F", numba.njit(nogil=True)(function))
