"""Pipelines from files, in TOML or in Python."""

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
"""Far above what anybody writes; keeps a wrong name from reading a whole data file."""

_VARIABLE = "pipeline"
"""What the pipeline is called in a Python file."""


def load(path: str) -> Pipeline:
    """Return the pipeline that a file describes, by its suffix: `.toml` or `.py`.

    A Python file is run. Relative paths of the pipeline start from the directory of the file.
    Raises `InvalidPipeline` with the file and what is wrong in it.
    """
    suffix = os.path.splitext(path)[1]
    if suffix not in (".toml", ".py"):
        raise InvalidPipeline(f"{path} ends in {suffix!r}, allowed are .toml and .py")
    if (size := os.path.getsize(path)) > FILE_SIZE_MAX:
        raise InvalidPipeline(f"{path} has {size} bytes, allowed are {FILE_SIZE_MAX}")
    try:
        return _load_toml(path) if suffix == ".toml" else _load_python(path)
    except InvalidPipeline as error:
        raise InvalidPipeline(f"{path}: {error}") from error


def home_of(path: str) -> str:
    """Return the directory that relative paths in a file start from."""
    return os.path.dirname(os.path.abspath(path))


def _load_toml(path: str) -> Pipeline:
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidPipeline(f"it is no UTF-8: {error}") from error
    return parse(text, home_of(path))


def _load_python(path: str) -> Pipeline:
    found = getattr(_run(path), _VARIABLE, None)
    if not isinstance(found, Pipeline):
        raise InvalidPipeline(f"its `{_VARIABLE}` is {found!r}, needed is a Pipeline")
    return found if found.home else dataclasses.replace(found, home=home_of(path))


def _run(path: str) -> ModuleType:
    """Run a file as a module of its own, whose functions reach the workers by value."""
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
        where = _line_in(path, error)
        raise InvalidPipeline(f"{where}{type(error).__name__}: {error}") from error
    _send_by_value(module)
    return module


def _line_in(path: str, error: Exception) -> str:
    """Return the line of a file in which an error came up."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    return f"line {lines[-1]}: " if lines else ""


def _send_by_value(module: ModuleType) -> None:
    """Have functions of the module sent whole to Spark's workers, which cannot import it."""
    if importlib.util.find_spec("pyspark") is None:
        return
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(module)
