"""The package: public names, and the modules that they import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import millstream


@pytest.mark.parametrize("name", millstream.__all__)
def test_every_public_name_is_found(name):
    assert getattr(millstream, name).__module__.startswith("millstream.")
    assert name in dir(millstream)


def test_a_name_that_does_not_exist_is_refused():
    with pytest.raises(AttributeError, match="module 'millstream' has no attribute 'colour'"):
        _ = millstream.colour


def test_no_public_class_name_is_defined_twice():
    modules: dict[str, list[str]] = defaultdict(list)
    for path in sorted((Path(__file__).parents[1] / "src").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(path.name)
    assert len(modules) > 500
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


def test_reading_batches_loads_no_storage():
    code = (
        "import sys; import millstream.records.arrow.decoder, millstream.records.arrow.encoder;"
        "print([name for name in sys.modules if name.startswith('millstream.storage')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
