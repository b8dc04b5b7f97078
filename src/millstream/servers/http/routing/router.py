"""Routing by dictionaries built from the declared operations.

Three kinds of path templates are looked up one after the other:

    /v1/topics                          static: one dictionary lookup
    /v1/topics/{topic}/records          one dictionary lookup for each segment
    /v1/groups/{group:path}/offsets     prefix and suffix; the parameter may contain slashes
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.servers.http.routing.operations import HttpOperation

REST_PARAMETER = ":path}"


class RoutedPath(NamedTuple):
    """The operations of one path template, by method."""

    template: str
    operations: dict[str, HttpOperation]

    @property
    def methods(self) -> list[str]:
        """Return the methods that are answered: HEAD also if only GET is declared."""
        return sorted({*self.operations, *(["HEAD"] if "GET" in self.operations else [])})

    def operation(self, method: str) -> HttpOperation | None:
        """Return the operation of a method; HEAD is answered by GET if it is not declared."""
        if method == "HEAD" and method not in self.operations:
            method = "GET"
        return self.operations.get(method)


class RouteMatch(NamedTuple):
    """The routed path of a request, and the values of its parameters."""

    path: RoutedPath
    parameters: dict[str, str]


class _Segment:
    """The paths that share their first segments: one level of the tree of templates."""

    __slots__ = ("children", "parameter", "parameter_name", "path")

    def __init__(self) -> None:
        self.children: dict[str, _Segment] = {}
        self.parameter_name = ""
        self.parameter: _Segment | None = None
        self.path: RoutedPath | None = None


class _RestTemplate(NamedTuple):
    """A template with a parameter that may contain slashes."""

    prefix: str
    name: str
    suffix: str
    path: RoutedPath


class Router:
    """Finds the operations of a path. Literal segments win over parameters."""

    def __init__(self, operations: Iterable[HttpOperation]) -> None:
        self.paths: dict[str, RoutedPath] = {}
        for operation in operations:
            path = self.paths.setdefault(operation.path, RoutedPath(operation.path, {}))
            path.operations[operation.method] = operation
        self._static = {
            template: RouteMatch(path, {})
            for template, path in self.paths.items()
            if "{" not in template
        }
        self._root = _Segment()
        self._rest: list[_RestTemplate] = []
        for template, path in self.paths.items():
            if REST_PARAMETER in template:
                prefix, _, end = template.partition("{")
                name, _, suffix = end.partition(REST_PARAMETER)
                self._rest.append(_RestTemplate(prefix, name, suffix, path))
            elif "{" in template:
                self._add(template, path)
        # The longest template first: one that ends in its parameter matches all longer ones too.
        self._rest.sort(key=lambda rest: -len(rest.path.template))

    def _add(self, template: str, path: RoutedPath) -> None:
        node = self._root
        for segment in template.split("/"):
            if not segment.startswith("{"):
                node = node.children.setdefault(segment, _Segment())
                continue
            node.parameter_name = segment[1:-1]
            node.parameter = node.parameter or _Segment()
            node = node.parameter
        node.path = path

    def match(self, path: str) -> RouteMatch | None:
        """Return the operations of a decoded path; `None` if there are none."""
        return self._static.get(path) or self._match_segments(path) or self._match_rest(path)

    def _match_segments(self, path: str) -> RouteMatch | None:
        parameters: dict[str, str] = {}
        node = self._root
        for segment in path.split("/"):
            child = node.children.get(segment)
            if child is None:
                child = node.parameter
                if child is None or not segment:
                    return None
                parameters[node.parameter_name] = segment
            node = child
        return None if node.path is None else RouteMatch(node.path, parameters)

    def _match_rest(self, path: str) -> RouteMatch | None:
        for prefix, name, suffix, routed in self._rest:
            end = len(path) - len(suffix)
            if len(prefix) <= end and path.startswith(prefix) and path.endswith(suffix):
                return RouteMatch(routed, {name: path[len(prefix) : end]})
        return None
