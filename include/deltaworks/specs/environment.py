"""An environment: where the lake, the landing bucket and the messages are, and what it overrides."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from deltaworks.specs.alert import AlertsSpec
from deltaworks.specs.base import Name, Spec
from deltaworks.specs.storage import AwsSpec, StorageSpec


class SparkSpec(Spec):
    """What every Spark driver of this environment gets on top of Deltaworks' own settings."""

    driver_memory: str = Field(default="1g", pattern=r"^\d+[mg]$")
    shuffle_partitions: int = Field(default=4, ge=1)
    conf: dict[str, str] = Field(default_factory=dict)
    java_options: str = Field(default="", description="on top of what drivers and executors get anyway")


class EnvironmentSpec(Spec):
    """`include/environments/<name>.yaml`."""

    environment: Name
    lake: StorageSpec
    landing: StorageSpec
    messaging: AwsSpec
    spark: SparkSpec = SparkSpec()
    alerts: AlertsSpec = AlertsSpec()
    overrides: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
