"""The pipeline on local disk of the engine's tests."""

from __future__ import annotations

from tests.spark.engine.conftest import make_shop, make_stage, shop

__all__ = ["make_shop", "make_stage", "shop"]
