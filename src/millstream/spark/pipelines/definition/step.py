"""Steps of a pipeline: SQL queries and Python functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines.definition.relations import Relations, relations
from millstream.spark.pipelines.definition.setting import (
    FUNCTION,
    NAME,
    TEXT,
    VIEW_NAME,
    check_settings,
    setting,
    settings,
    value_of,
)
from millstream.spark.pipelines.definition.source import Watermark

SESSION = "spark"
"""Name of the parameter that receives the session."""


@settings
class SqlStep:
    """A query over sources and other steps, in Spark SQL."""

    name: str = setting(VIEW_NAME, key=NAME)
    sql: str = setting(TEXT)
    watermark: Watermark | None = setting(value_of(Watermark), default=None)

    def __post_init__(self) -> None:
        check_settings(self, f"steps.{self.name}")

    @property
    def relations(self) -> Relations:
        """Tables that the query names."""
        return relations(self.sql)


@settings
class FunctionStep:
    """A function from DataFrames to a DataFrame.

    Its parameters are named after the sources and steps that it reads; a parameter `spark` receives
    the session. It is called once, when the pipeline starts.
    """

    name: str = setting(VIEW_NAME, key=NAME)
    function: Callable[..., Any] = setting(FUNCTION)
    watermark: Watermark | None = setting(value_of(Watermark), default=None)

    def __post_init__(self) -> None:
        check_settings(self, f"steps.{self.name}")
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidPipeline(
                    f"steps.{self.name} must have one parameter for each source and step that it"
                    f" reads, got *{parameter.name}"
                )

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.function).parameters)


Step: TypeAlias = SqlStep | FunctionStep


def step(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    watermark: Watermark | None = None,
) -> Any:
    """Make a function a step, under its own name unless another is given.

    @step
    def large(orders):
        return orders.where("amount > 1000")
    """
    if function is None:
        return lambda decorated: step(decorated, name=name, watermark=watermark)
    return FunctionStep(name=name or function.__name__, function=function, watermark=watermark)
