"""The environment and the catalog of a command, arguments that complete names, and a check that the environment's
endpoints can be reached.

Completion runs while someone types, so it reads file names only and loads no specs. Names of invalid specs are
completed, too.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import typer

from deltaworks.errors import TransientError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.storage import AwsSpec

if TYPE_CHECKING:
    from deltaworks.control.objects import ObjectStore
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.environment import EnvironmentSpec


Service = Literal["lake", "landing", "messaging"]


def apply_settings() -> None:
    """Loads the settings file of this checkout, which the embedded stack writes, if it exists.

    Its settings override environment variables.
    """
    from deltaworks.specs.project_folder import load_settings, settings_file

    path = settings_file()
    if path.is_file():
        load_settings(path)


def catalog(*, required_service: Service | None = "lake") -> Catalog:
    """Loads all specs with the environment's settings.

    Invalid specs are named on standard error and skipped, so that commands work for the other pipelines. If a command
    requests an invalid spec by name, its error is raised.

    Args:
        required_service: the service that the command will use; None if it uses none.

    Raises:
        TransientError: STORAGE_UNREACHABLE within about a second if the service does not answer.
    """
    from deltaworks.specs.project import load_catalog

    apply_settings()
    project = load_catalog(skip_invalid=True)
    if project.broken:
        from deltaworks.cli.output import print_line

        invalid_names = ", ".join(f"{kind} {name}" for kind, name in project.broken)
        print_line(f"Invalid and skipped: {invalid_names}. Run `deltaworks pipelines check` for details.", error=True)
    if required_service is not None:
        require_reachable(project.environment, required_service)
    return project


def lake_objects() -> ObjectStore:
    """Opens the control objects of the environment's lake, for commands that need no spec of a pipeline.

    Raises:
        TransientError: STORAGE_UNREACHABLE within about a second if the lake does not answer.
    """
    from deltaworks.control.objects import open_objects
    from deltaworks.specs.loading import environment_file, load_environment

    apply_settings()
    environment = load_environment(environment_file())
    require_reachable(environment, "lake")
    return open_objects(environment.lake)


def require_reachable(environment: EnvironmentSpec, service_name: Service) -> None:
    """Raises if a service of the environment does not answer.

    Raises:
        TransientError: STORAGE_UNREACHABLE.
    """
    service = {"lake": environment.lake, "landing": environment.landing, "messaging": environment.messaging}[
        service_name
    ]
    check_reachable(service, section=service_name, environment=environment.environment)


def pipeline_names(incomplete: str) -> list[str]:
    """Returns the declared pipelines with this prefix."""
    return sorted(name for name in _pipelines() if name.startswith(incomplete))


def stream_names(incomplete: str) -> list[str]:
    """Returns the declared pipelines and relays with this prefix."""
    relays = (path.stem for path in (_root() / "include" / "relays").glob("*.yaml"))
    return sorted(name for name in {*_pipelines(), *relays} if name.startswith(incomplete))


#: An argument that names a pipeline.
PipelineArgument = Annotated[str, typer.Argument(help="The pipeline.", autocompletion=pipeline_names)]
#: An argument that names a stream's pipeline, a relay, or another long-running process.
StreamArgument = Annotated[
    str,
    typer.Argument(
        help="A pipeline, a relay, or the DAG of another long-running process, such as rules.",
        autocompletion=stream_names,
    ),
]
#: An optional argument that names a pipeline.
OptionalPipelineArgument = Annotated[str, typer.Argument(help="Only this pipeline.", autocompletion=pipeline_names)]


def _pipelines() -> Iterator[str]:
    return (path.parent.name for path in (_root() / "include" / "pipelines").glob("*/pipeline.yaml"))


def _root() -> Path:
    from deltaworks.specs.project_folder import project_root

    return project_root()


TIMEOUT_SECONDS = 1.0
_PORTS = {"http": 80, "https": 443}


def check_reachable(service: AwsSpec, *, section: str, environment: str) -> None:
    """Connects once to a declared endpoint. Skips local disk, AWS endpoints and proxied endpoints.

    Args:
        section: the environment's section, such as `lake`.

    Raises:
        TransientError: STORAGE_UNREACHABLE, within about a second.
        ConfigError: REFERENCE_UNRESOLVED.
    """
    if service.endpoint is None:
        return
    endpoint = resolve_text(service.endpoint)
    parts = urlsplit(endpoint)
    if parts.hostname is None or _is_proxied(parts):
        return
    try:
        address = (parts.hostname, parts.port or _PORTS.get(parts.scheme, 443))
        socket.create_connection(address, timeout=TIMEOUT_SECONDS).close()
    except OSError as error:
        from deltaworks.specs.sql_server import is_loopback

        setting = f"{section}.endpoint in include/environments/{environment}.yaml"
        hint = f"Check {setting}, and the network."
        if is_loopback(parts.hostname):
            hint = f"`deltaworks up` starts the embedded stack. Where this is another one, check {setting}."
        raise TransientError(
            "STORAGE_UNREACHABLE", f"Nothing answers at {endpoint} (the {section}).", hint=hint
        ) from error


def _is_proxied(parts: SplitResult) -> bool:
    import urllib.request

    return parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.netloc)
