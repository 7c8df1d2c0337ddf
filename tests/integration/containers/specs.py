"""Compose services after variable substitution and merging, and their health check settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Condition(StrEnum):
    """A dependency's required state."""

    STARTED = "service_started"
    HEALTHY = "service_healthy"
    COMPLETED = "service_completed_successfully"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckSpec:
    """A health check command; defaults are Docker's."""

    command: tuple[str, ...]
    interval_seconds: float = 30.0
    timeout_seconds: float = 30.0
    retries: int = 3
    start_period_seconds: float = 0.0
    start_interval_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSpec:
    """A named volume or a path of this machine, mounted at a path of the container."""

    source: str
    target: str
    is_volume: bool
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPort:
    """A container port published at an address and port of the machine."""

    address: str
    port: int
    container_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """A service. `target` is the stage of the Dockerfile it is built from, empty for the last one; `entrypoint` and
    `command` are None if the image's are used.
    """

    name: str
    image: str
    is_built: bool
    target: str
    entrypoint: tuple[str, ...] | None
    command: tuple[str, ...] | None
    variables: Mapping[str, str]
    hostname: str
    needs: Mapping[str, Condition]
    health_check: HealthCheckSpec | None
    mounts: tuple[MountSpec, ...]
    ports: tuple[PublishedPort, ...]
    restart: str = "no"
    stop_grace_seconds: float = 10.0
    is_read_only: bool = False
    tmpfs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSpec:
    """The services of the selected profiles by name, and the named volumes."""

    name: str
    folder: Path
    services: Mapping[str, ServiceSpec]
    volumes: frozenset[str]

    def start_order(self) -> tuple[ServiceSpec, ...]:
        """Returns every service after its dependencies."""
        order: dict[str, ServiceSpec] = {}

        def add(name: str) -> None:
            if name not in order:
                for needed in self.services[name].needs:
                    add(needed)
                order[name] = self.services[name]

        for name in self.services:
            add(name)
        return tuple(order.values())
