"""Builds the source of generated Python functions, with the names that it refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class SourceBuilder:
    """The lines of one generated function."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._indent = ""
        self._names: dict[str, Any] = {}
        self._count = 0

    def add(self, *lines: str) -> None:
        """Add lines at the present indentation."""
        self._lines += [self._indent + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent the lines that are added in this context below `head`."""
        self.add(head)
        self._indent += " "
        start = len(self._lines)
        yield
        if len(self._lines) == start:
            self.add("pass")
        self._indent = self._indent[:-1]

    def fresh(self, stem: str) -> str:
        """Return a name that is not in use."""
        self._count += 1
        return f"{stem}_{self._count}"

    def constant(self, stem: str, value: Any) -> str:
        """Return an expression for `value`: a literal if there is one, otherwise a new name."""
        if value is None or value == () or isinstance(value, bool | int | str | bytes):
            return repr(value)
        name = self.fresh(stem)
        self._names[name] = value
        return name

    def compile(self, function: str, origin: str, names: dict[str, Any]) -> Callable[..., Any]:
        """Execute the source with `names` in scope, and return the function that it defines."""
        scope = {**names, **self._names}
        exec(compile("\n".join(self._lines), f"<{origin}>", "exec"), scope)  # noqa: S102
        made: Callable[..., Any] = scope[function]
        return made
