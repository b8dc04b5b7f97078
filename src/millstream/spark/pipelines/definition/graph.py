"""How sources, steps and targets hang together."""

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
    """Return what goes to a target, in lower case: what it says, or what is called as it is."""
    return (target.reads or target.name).lower()


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Return steps so that each comes after those that it reads.

    Raises `InvalidPipeline` where that cannot be, with the steps that need each other.
    """
    known = {step.name.lower(): step for step in steps}
    order = graphlib.TopologicalSorter(
        {name: sorted(inputs_of(step) & known.keys()) for name, step in known.items()}
    )
    try:
        return [known[name] for name in order.static_order()]
    except graphlib.CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise InvalidPipeline(f"steps need their own results: {circle}") from None


def check_graph(
    sources: Sequence[Source], steps: Sequence[Step], targets: Sequence[Target]
) -> None:
    """Refuse what does not fit together, with the place, what was found and what is allowed."""
    if not targets:
        raise InvalidPipeline("there are no targets, needed is one or more: nothing would run")
    _check_once("sources and steps", [one.name for one in (*sources, *steps)])
    _check_once("targets", [one.name for one in targets])
    known = {one.name.lower(): one.name for one in (*sources, *steps)}
    for step in steps:
        _check_step(step, known)
    in_order(steps)
    for target in targets:
        _check_known(f"targets.{target.name}.from", read_by(target), known)
        _check_streams(target, sources, steps)
    _check_tables(targets)
    _check_loops(sources, steps, targets)


def _check_once(what: str, names: Iterable[str]) -> None:
    """Refuse a name that is there twice: views and directories may not tell cases apart."""
    for name, count in Counter(name.lower() for name in names).items():
        if count > 1:
            raise InvalidPipeline(f"{count} {what} are called {name!r}, needed is a name for each")


def _check_step(step: Step, known: dict[str, str]) -> None:
    if isinstance(step, SqlStep):
        for name in sorted(step.relations.given & known.keys()):
            raise InvalidPipeline(
                f"steps.{step.name}.sql gives the name {name!r} with WITH, which is that of a"
                " source or step: needed is another"
            )
    for name in sorted(inputs_of(step)):
        _check_known(f"steps.{step.name}", name, known)


def _check_known(place: str, name: str, known: dict[str, str]) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    meant = f", perhaps {known[near[0]]!r}" if near else ""
    raise InvalidPipeline(
        f"{place} reads {name!r}, which is no source and no step; there are"
        f" {', '.join(sorted(known.values())) or 'none'}{meant}"
    )


def upstream(name: str, steps: Sequence[Step]) -> set[str]:
    """Return what a source or step rests on, itself included, in lower case."""
    known = {step.name.lower(): step for step in steps}
    found: set[str] = set()
    left = [name]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += inputs_of(known[one]) if one in known else ()
    return found


def _check_streams(target: Target, sources: Sequence[Source], steps: Sequence[Step]) -> None:
    """Refuse a target that would be written once and never again.

    A function that takes the session may read streams that are not among the sources: Spark tells.
    """
    names = upstream(read_by(target), steps)
    is_stream = any(one.is_stream for one in sources if one.name.lower() in names)
    is_open = any(
        isinstance(one, FunctionStep) and SESSION in one.parameters
        for one in steps
        if one.name.lower() in names
    )
    if not is_stream and not is_open:
        raise InvalidPipeline(
            f"targets.{target.name}.from is {read_by(target)!r}, which rests on no stream:"
            " needed is a topic, or a table with stream = true"
        )


def _check_tables(targets: Sequence[Target]) -> None:
    """Refuse two queries that write one table: the log of its files has room for one."""
    places = [
        one.table.rstrip("/") if is_path(one.table) else one.table.lower()
        for one in targets
        if isinstance(one, TableTarget)
    ]
    for place, count in Counter(places).items():
        if count > 1:
            raise InvalidPipeline(f"{count} targets write the table {place!r}, allowed is one")


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
                    f" {source.name!r} reads: what it writes would come back for ever"
                )
