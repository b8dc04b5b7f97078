"""The Kubernetes manifests are what the published schemas of Kubernetes allow."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.files import documents

FILES = ("kubernetes/millstream.yaml", "kubernetes/cluster.yaml")
RELEASES = ("1.29", "1.33")
"""The oldest release in which claims for one pod are stable, and a later one."""

OBJECTS = [
    pytest.param(one, id=f"{file} {one['kind']} {one['metadata']['name']}")
    for file in FILES
    for one in documents(file)
]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("manifest", OBJECTS)
def test_every_object_is_one_that_the_schema_allows(manifest: dict[str, Any], release: str):
    kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("file", FILES)
def test_a_field_that_does_not_exist_is_found(file: str):
    """Kubernetes would drop it without a word."""
    (found, *_) = (one for one in documents(file) if one["kind"] == "StatefulSet")
    wrong = deepcopy(found)
    wrong["spec"]["template"]["spec"]["terminationGraceSeconds"] = 60
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
        kubernetes_validate.validate(wrong, RELEASES[0], strict=True)
