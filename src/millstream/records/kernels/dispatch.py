"""Choice between a plain-Python function and its compiled version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_LOAD_RECORDS = 20_000
"""Plain Python needs a tenth of a second for as many; loading the compiler takes about a second."""

_CALL_RECORDS = 16
"""With fewer, plain Python is done before a kernel is called."""


class KernelDispatch(Generic[F]):
    """A plain-Python function and its compiled version, which return the same result.

    Numba is an optional dependency and slow to load, so the plain function is called until the
    number of records makes loading worthwhile. Without Numba it is always called.
    """

    def __init__(self, reference: F, load: Callable[[], F]) -> None:
        self.reference = reference
        self._load = load
        self._compiled: F | None = None
        self._records = 0

    @property
    def compiled(self) -> F:
        """The compiled function, or the plain one without Numba."""
        if self._compiled is None:
            try:
                self._compiled = self._load()
            except ImportError:
                self._compiled = self.reference
        return self._compiled

    def choose(self, records: int) -> F:
        """Return the function to call for `records` records."""
        self._records += records
        if records < _CALL_RECORDS or self._records < _LOAD_RECORDS:
            return self.reference
        return self.compiled
