"""Loader of pipeline files, in TOML or Python."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.toml import parse

FILE_SIZE_MAX = 1024 * 1024
"""Far above any real pipeline; prevents reading a data file because of a wrong name."""

_VARIABLE = "pipeline"
"""Variable of a Python file that has the pipeline."""


def load(path: str) -> Pipeline:
    """Return the pipeline in a file, by its suffix: `.toml` or `.py`.

    A Python file is executed. Relative paths of the pipeline start at the directory of the file.
    Raises `InvalidPipeline` with the file and the error.
    """
    suffix = os.path.splitext(path)[1]
    if suffix not in (".toml", ".py"):
        raise InvalidPipeline(f"a pipeline file must end in .toml or .py, got {path}")
    if (size := os.path.getsize(path)) > FILE_SIZE_MAX:
        raise InvalidPipeline(f"{path} must have at most {FILE_SIZE_MAX} bytes, got {size}")
    try:
        return _load_toml(path) if suffix == ".toml" else _load_python(path)
    except InvalidPipeline as error:
        raise InvalidPipeline(f"{path}: {error}") from error


def home_of(path: str) -> str:
    """Return the directory at which relative paths in a file start."""
    return os.path.dirname(os.path.abspath(path))


def _load_toml(path: str) -> Pipeline:
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidPipeline(f"not valid UTF-8: {error}") from error
    return parse(text, home_of(path))


def _load_python(path: str) -> Pipeline:
    pipeline = getattr(_run(path), _VARIABLE, None)
    if not isinstance(pipeline, Pipeline):
        raise InvalidPipeline(f"`{_VARIABLE}` must be a Pipeline, got {pipeline!r}")
    return pipeline if pipeline.home else dataclasses.replace(pipeline, home=home_of(path))


def _run(path: str) -> ModuleType:
    """Execute a file as a module of its own, whose functions are pickled by value."""
    name = f"millstream_pipeline_{os.path.splitext(os.path.basename(path))[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except InvalidPipeline:
        raise
    except Exception as error:  # A user's file may raise anything.
        place = _line_in(path, error)
        raise InvalidPipeline(f"{place}{type(error).__name__}: {error}") from error
    _send_by_value(module)
    return module


def _line_in(path: str, error: Exception) -> str:
    """Return the line of the file at which an error was raised."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    return f"line {lines[-1]}: " if lines else ""


def _send_by_value(module: ModuleType) -> None:
    """Pickle functions of the module by value: Spark's workers cannot import it."""
    if importlib.util.find_spec("pyspark") is None:
        return
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(module)
