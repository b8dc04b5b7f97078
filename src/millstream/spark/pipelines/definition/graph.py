"""Dependencies between the sources, steps and targets of a pipeline."""

from __future__ import annotations

import difflib
import graphlib
from collections import Counter
from collections.abc import Iterable, Sequence

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines.definition.source import Source, TopicSource
from millstream.spark.pipelines.definition.step import SESSION, FunctionStep, SqlStep, Step
from millstream.spark.pipelines.definition.table import is_path
from millstream.spark.pipelines.definition.target import TableTarget, Target, TopicTarget


def inputs_of(step: Step) -> frozenset[str]:
    """Return the sources and steps that a step reads, in lower case."""
    if isinstance(step, SqlStep):
        return step.relations.read
    return frozenset(name.lower() for name in step.parameters if name != SESSION)


def read_by(target: Target) -> str:
    """Return the input of a target, in lower case: `from`, or the source or step of its name."""
    return (target.reads or target.name).lower()


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Return the steps in topological order.

    Raises `InvalidPipeline` with the steps of a cycle.
    """
    known = {step.name.lower(): step for step in steps}
    order = graphlib.TopologicalSorter(
        {name: sorted(inputs_of(step) & known.keys()) for name, step in known.items()}
    )
    try:
        return [known[name] for name in order.static_order()]
    except graphlib.CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        raise InvalidPipeline(f"steps depend on themselves: {cycle}") from None


def check_graph(
    sources: Sequence[Source], steps: Sequence[Step], targets: Sequence[Target]
) -> None:
    """Check that the parts of a pipeline fit together; raises `InvalidPipeline`."""
    if not targets:
        raise InvalidPipeline("a pipeline must have at least one target, got none")
    _check_once("sources and steps", [part.name for part in (*sources, *steps)])
    _check_once("targets", [target.name for target in targets])
    known = {part.name.lower(): part.name for part in (*sources, *steps)}
    for step in steps:
        _check_step(step, known)
    in_order(steps)
    for target in targets:
        _check_known(f"targets.{target.name}.from", read_by(target), known)
        _check_streams(target, sources, steps)
    _check_tables(targets)
    _check_loops(sources, steps, targets)


def _check_once(what: str, names: Iterable[str]) -> None:
    """Refuse a duplicate name. Case is ignored, as it is in views and in some file systems."""
    for name, count in Counter(name.lower() for name in names).items():
        if count > 1:
            raise InvalidPipeline(f"names of {what} must be distinct, got {name!r} {count} times")


def _check_step(step: Step, known: dict[str, str]) -> None:
    if isinstance(step, SqlStep):
        for name in sorted(step.relations.given & known.keys()):
            raise InvalidPipeline(
                f"steps.{step.name}.sql defines {name!r} with WITH, which is the name of a source"
                " or step: use another name"
            )
    for name in sorted(inputs_of(step)):
        _check_known(f"steps.{step.name}", name, known)


def _check_known(key: str, name: str, known: dict[str, str]) -> None:
    if name in known:
        return
    similar = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {known[similar[0]]!r}?" if similar else ""
    raise InvalidPipeline(
        f"{key} reads {name!r}, which is neither a source nor a step; there are"
        f" {', '.join(sorted(known.values())) or 'none'}{hint}"
    )


def upstream(name: str, steps: Sequence[Step]) -> set[str]:
    """Return the transitive inputs of a source or step, including itself, in lower case."""
    known = {step.name.lower(): step for step in steps}
    visited: set[str] = set()
    pending = [name]
    while pending:
        part = pending.pop()
        if part not in visited:
            visited.add(part)
            pending += inputs_of(known[part]) if part in known else ()
    return visited


def _check_streams(target: Target, sources: Sequence[Source], steps: Sequence[Step]) -> None:
    """Refuse a target that does not depend on a stream, and so would be written only once.

    A function that takes the session may read streams that are not sources: Spark checks those.
    """
    names = upstream(read_by(target), steps)
    is_stream = any(source.is_stream for source in sources if source.name.lower() in names)
    may_read_streams = any(
        isinstance(step, FunctionStep) and SESSION in step.parameters
        for step in steps
        if step.name.lower() in names
    )
    if not is_stream and not may_read_streams:
        raise InvalidPipeline(
            f"targets.{target.name}.from must depend on a stream (a topic, or a table with"
            f" stream = true), got {read_by(target)!r}"
        )


def _check_tables(targets: Sequence[Target]) -> None:
    """Refuse two queries that write one table: its file log supports one writer."""
    tables = [
        target.table.rstrip("/") if is_path(target.table) else target.table.lower()
        for target in targets
        if isinstance(target, TableTarget)
    ]
    for table, count in Counter(tables).items():
        if count > 1:
            raise InvalidPipeline(f"at most one target may write table {table!r}, got {count}")


def _check_loops(
    sources: Sequence[Source], steps: Sequence[Step], targets: Sequence[Target]
) -> None:
    for target in targets:
        if not isinstance(target, TopicTarget):
            continue
        names = upstream(read_by(target), steps)
        for source in sources:
            if (
                isinstance(source, TopicSource)
                and source.topic == target.topic
                and source.name.lower() in names
            ):
                raise InvalidPipeline(
                    f"targets.{target.name}.topic is {target.topic!r}, which its source"
                    f" {source.name!r} reads: it would read its own output"
                )
