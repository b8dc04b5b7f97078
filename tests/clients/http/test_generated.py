"""The blocking client is generated from the asyncio client."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GENERATOR = runpy.run_path(str(ROOT / "tools/generate_sync_client.py"))


@pytest.mark.parametrize("name", GENERATOR["MODULES"])
def test_a_module_of_the_blocking_client_is_what_the_generator_writes(name: str) -> None:
    path = ROOT / f"src/millstream/clients/http/sync/{name}.py"
    expected = GENERATOR["formatted"](GENERATOR["generate"](name))
    assert path.read_text() == expected, "run `make docs`"
