"""Plain functions that have a compiled twin, and which of the two to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_LOAD_RECORDS = 20_000
"""Plain Python needs a tenth of a second for so many; loading the compiler takes about one."""

_CALL_RECORDS = 16
"""Plain Python is done with so few before a kernel is called."""


class KernelDispatch(Generic[F]):
    """A plain function and its compiled twin, which give the same result.

    Numba is an extra and slow to load, so the plain one is called until that has added up. Where
    Numba is missing it is called for good.
    """

    def __init__(self, plain: F, load: Callable[[], F]) -> None:
        self.plain = plain
        self._load = load
        self._compiled: F | None = None
        self._records = 0

    @property
    def compiled(self) -> F:
        """The compiled function, or the plain one where Numba is missing."""
        if self._compiled is None:
            try:
                self._compiled = self._load()
            except ImportError:
                self._compiled = self.plain
        return self._compiled

    def choose(self, records: int) -> F:
        """Return the function to call for so many records."""
        self._records += records
        if records < _CALL_RECORDS or self._records < _LOAD_RECORDS:
            return self.plain
        return self.compiled
