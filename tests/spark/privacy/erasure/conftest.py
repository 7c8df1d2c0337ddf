"""The engine tests' pipeline on local disk."""

from __future__ import annotations

from tests.spark.engine.conftest import make_shop

__all__ = ["make_shop"]
