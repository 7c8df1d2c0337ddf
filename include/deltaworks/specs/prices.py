"""Prices of storage and compute, for the cost page."""

from __future__ import annotations

from pydantic import Field

from deltaworks.specs.base import Spec


class PricesSpec(Spec):
    """Prices in one currency. A price that is not given is 0."""

    currency: str = Field(min_length=1, max_length=8, description="currency code, such as USD")
    stored_per_tb_month: float = Field(default=0.0, ge=0, description="10^12 bytes stored for 30 days")
    rewritten_per_tb: float = Field(default=0.0, ge=0, description="10^12 bytes that OPTIMIZE rewrites (requests)")
    core_hour: float = Field(default=0.0, ge=0, description="one core for an hour")
