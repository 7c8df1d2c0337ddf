"""What commands share: the settings of the environment and the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.environment import EnvironmentSpec

Service = Literal["lake", "landing", "messaging"]


def apply_settings() -> None:
    """Take over the settings file of this checkout, where there is one: the embedded stack's, once it was started.

    Settings of the file win over variables of the calling shell.
    """
    from deltaworks.specs.settings_file import load_settings, settings_file

    path = settings_file()
    if path.is_file():
        load_settings(path)


def catalog(*, required_service: Service | None = "lake") -> Catalog:
    """Everything declared, with the environment's settings taken over.

    What is declared wrongly is named on standard error and left out, so that commands work for the rest; asked for by
    its name, it raises its own error.

    Args:
        needs: what the command is about to ask; None where it asks nothing.

    Raises:
        TransientError: STORAGE_UNREACHABLE within about a second, where nothing answers there.
    """
    from deltaworks.specs.project import load_catalog

    apply_settings()
    project = load_catalog(skip_invalid=True)
    if project.broken:
        from deltaworks.cli.output import print_line

        named = ", ".join(f"{kind} {name}" for kind, name in project.broken)
        print_line(f"Declared wrongly and left out: {named}. `deltaworks pipelines check` says why.", error=True)
    if required_service is not None:
        require_reachable(project.environment, required_service)
    return project


def require_reachable(environment: EnvironmentSpec, service_name: Service) -> None:
    """Refuse to go on where nothing answers at a service of the environment.

    Raises:
        TransientError: STORAGE_UNREACHABLE.
    """
    from deltaworks.cli.probe import check_reachable

    service = {"lake": environment.lake, "landing": environment.landing, "messaging": environment.messaging}[
        service_name
    ]
    check_reachable(service, section=service_name, environment=environment.environment)
