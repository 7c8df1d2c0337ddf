"""Validates objects with Kubernetes' schemas from the package `kubernetes-validate`."""

from __future__ import annotations

from typing import Any

import pytest

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate of requirements-dev.lock")

#: The oldest of those that get fixes, and the newest there is.
VERSIONS = ("1.33", "1.37")


def check(item: dict[str, Any], version: str) -> None:
    """Refuse an object that is not of its schema, or has a field that the schema does not name.

    Raises:
        kubernetes_validate.ValidationError: with the place.
    """
    kubernetes_validate.validate(item, version, strict=True)
