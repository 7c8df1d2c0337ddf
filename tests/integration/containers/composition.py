"""Runs the services of a Compose file in containers of this machine: start, health checks, restarts, and stop."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.integration.containers import published_ports
from tests.integration.containers.container import Container, ContainerSpec
from tests.integration.containers.health import Health, HealthState, Probe, watch
from tests.integration.containers.image_build import Image, ImageBuilder
from tests.integration.containers.namespace_host import NamespaceHost, container_address
from tests.integration.containers.specs import Condition, MountSpec, ProjectSpec, ServiceSpec
from tests.waiting import eventually

_POLL_SECONDS = 0.2


class CompositionError(RuntimeError):
    """Raised when a service cannot reach the state another one depends on."""


@dataclass
class Service:
    """A running service: its container, health and exit status."""

    spec: ServiceSpec
    log: Path
    container: Container | None = None
    state: HealthState = field(default_factory=HealthState)
    exit_status: int | None = None
    starts: int = 0
    #: Seconds from the container's start to the first successful probe.
    healthy_after_seconds: float | None = None
    refusal: str = ""

    def meets(self, condition: Condition) -> bool:
        """Returns whether a service that depends on this one can start.

        Raises:
            CompositionError: it can never start.
        """
        if self.refusal:
            raise CompositionError(self.refusal)
        match condition:
            case Condition.STARTED:
                return self.container is not None
            case Condition.HEALTHY:
                if self.state.health is Health.UNHEALTHY:
                    raise CompositionError(f"{self.spec.name} is unhealthy: {self.state.last}\n{self.tail()}")
                return self.state.health is Health.HEALTHY
            case Condition.COMPLETED:
                if self.exit_status:
                    raise CompositionError(f"{self.spec.name} exited with {self.exit_status}\n{self.tail()}")
                return self.exit_status == 0

    def tail(self, lines: int = 40) -> str:
        """Returns the end of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


class Composition:
    """A running project. Not thread-safe, except for the threads it starts itself."""

    def __init__(self, host: NamespaceHost, project: ProjectSpec, folder: Path, builder: ImageBuilder) -> None:
        self._host = host
        self._project = project
        self._folder = folder
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._images = self._all_images(builder)
        self._addresses = {name: container_address(number) for number, name in enumerate(project.services)}
        for name in ("logs", "volumes", "containers"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.services = {
            name: Service(spec, folder / "logs" / f"{name}.log") for name, spec in project.services.items()
        }

    def up(self) -> None:
        """Starts all services, each after its dependencies; returns immediately."""
        self._publish()
        for spec in self._project.start_order():
            thread = threading.Thread(target=self._run, args=(self.services[spec.name],), name=spec.name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def await_condition(self, name: str, condition: Condition, *, seconds: float) -> None:
        """Waits until a service is healthy, or has exited successfully.

        Raises:
            CompositionError: it can never reach that state.
        """
        service = self.services[name]
        eventually(lambda: service.meets(condition), f"{name}: {condition}; {service.state}", seconds=seconds)

    def container(self, name: str) -> Container:
        """Returns the container of a running service."""
        container = self.services[name].container
        assert container is not None, f"{name} does not run"
        return container

    def probe(self, name: str) -> Probe:
        """Runs the health check of a service now."""
        check = self._project.services[name].health_check
        assert check is not None, f"{name} has no health check"
        return self.container(name).execute(check.command, timeout_seconds=check.timeout_seconds)

    def start_nothing_more(self) -> None:
        """Disables restarts of services that end from now on."""
        self._ending.set()

    def down(self) -> dict[str, int]:
        """Stops all services, dependencies last; returns the exit status by service."""
        self._ending.set()
        statuses = {}
        for spec in reversed(self._project.start_order()):
            container = self.services[spec.name].container
            if container is not None:
                statuses[spec.name] = container.stop(grace_seconds=spec.stop_grace_seconds)
        for thread in self._threads:
            thread.join(timeout=30)
        return statuses

    def _all_images(self, builder: ImageBuilder) -> dict[str, Image]:
        """Returns the image of each service; builds each Dockerfile target once."""
        images: dict[str, Image] = {}
        for spec in self._project.services.values():
            if spec.image not in images:
                images[spec.image] = (
                    builder.build(self._project.folder, target=spec.target)
                    if spec.is_built
                    else builder.base(spec.image)
                )
        return images

    def _run(self, service: Service) -> None:
        """Runs the service and restarts it by its policy until the project is stopped."""
        try:
            self._await_needs(service)
            while not self._ending.is_set():
                status = self._run_once(service)
                service.exit_status = status
                if not _is_restarted(service.spec.restart, status):
                    return
                # Docker's delay grows with each restart; the first delays are sufficient here.
                self._ending.wait(min(10.0, 0.1 * 2**service.starts))
        except Exception as error:
            service.refusal = f"{service.spec.name}: {error}"

    def _await_needs(self, service: Service) -> None:
        for needed, condition in service.spec.needs.items():
            while not self._ending.is_set() and not self.services[needed].meets(condition):
                time.sleep(_POLL_SECONDS)

    def _run_once(self, service: Service) -> int:
        """Runs a container to its end and its health checks meanwhile."""
        number = list(self._project.services).index(service.spec.name)
        folder = self._folder / "containers" / f"{service.spec.name}-{service.starts}"
        spec = self._container_spec(service.spec, number * 100 + service.starts)
        service.starts += 1
        service.state = HealthState()
        container = Container(self._host, folder, spec, log=service.log)
        service.container = container
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(service, container, ended), daemon=True)
        watcher.start()
        status = container.wait()
        ended.set()
        service.container = None
        watcher.join()
        assert status is not None
        return status

    def _watch(self, service: Service, container: Container, ended: threading.Event) -> None:
        check = service.spec.health_check
        if check is None:
            return

        def report(state: HealthState) -> None:
            if state.health is Health.HEALTHY and service.healthy_after_seconds is None:
                service.healthy_after_seconds = time.monotonic() - container.started_at
            service.state = state

        watch(
            check,
            probe=lambda: container.execute(check.command, timeout_seconds=check.timeout_seconds),
            report=report,
            clock=time.monotonic,
            wait=lambda seconds: ended.wait(seconds) or self._ending.is_set(),
        )

    def _container_spec(self, spec: ServiceSpec, number: int) -> ContainerSpec:
        image = self._images[spec.image]
        entrypoint = image.entrypoint if spec.entrypoint is None else spec.entrypoint
        # An `entrypoint` in the file also removes the image's command.
        standing = image.command if spec.entrypoint is None else ()
        command = standing if spec.command is None else spec.command
        return ContainerSpec(
            name=spec.name,
            image=image,
            words=(*entrypoint, *command),
            variables=spec.variables,
            hostname=spec.hostname or secrets.token_hex(6),
            address=self._addresses[spec.name],
            hosts=self._addresses,
            mounts=tuple(self._volume(mount, image) for mount in spec.mounts),
            is_read_only=spec.is_read_only,
            tmpfs=spec.tmpfs,
            number=number,
        )

    def _volume(self, mount: MountSpec, image: Image) -> MountSpec:
        """Returns a volume's folder. The first container that mounts it copies content and owner of its own folder into
        it.
        """
        if not mount.is_volume:
            return mount
        folder = self._folder / "volumes" / mount.source
        if not folder.exists():
            places = [layer / mount.target.lstrip("/") for layer in image.layers]
            own = next((place for place in places if place.exists()), None)
            if own is None:
                folder.mkdir()
            else:
                shutil.copytree(own, folder)
                os.chown(folder, own.stat().st_uid, own.stat().st_gid)
        return replace(mount, source=str(folder))

    def _publish(self) -> None:
        places = [
            f"{port.address}:{port.port}={self._addresses[spec.name]}:{port.container_port}"
            for spec in self._project.services.values()
            for port in spec.ports
        ]
        if places:
            subprocess.Popen(
                self._host.command([sys.executable, published_ports.__file__, *places]), stdin=subprocess.DEVNULL
            )


def _is_restarted(policy: str, status: int) -> bool:
    return policy in ("always", "unless-stopped") or (policy.startswith("on-failure") and status != 0)
