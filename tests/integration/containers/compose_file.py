"""Reads a Compose file like `docker compose`, limited to the keys this project uses.

Any other key is refused, so that the file cannot contain settings the test run ignores.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from deltaworks.specs.yaml_reader import load_yaml
from tests.integration.containers.interpolation import ComposeFileError, interpolate_tree
from tests.integration.containers.specs import (
    Condition,
    HealthCheckSpec,
    MountSpec,
    ProjectSpec,
    PublishedPort,
    ServiceSpec,
)
from tests.integration.containers.variable_files import read_variables

_TOP_KEYS = {"name", "services", "volumes", "secrets"}
_KEYS = frozenset(
    {"build", "command", "depends_on", "entrypoint", "env_file", "environment", "extends", "healthcheck", "hostname"}
    | {"image", "ports", "profiles", "read_only", "restart", "secrets", "stop_grace_period", "tmpfs", "volumes"}
    # A user without capabilities and the machine's memory stand for these.
    | {"cap_add", "cap_drop", "mem_limit", "security_opt"}
)
_HEALTH_KEYS = {"test", "interval", "timeout", "retries", "start_period", "start_interval", "disable"}
#: An extending service replaces these completely; other lists are concatenated and mappings are merged.
_REPLACED = {"command", "entrypoint", "test"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|us|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_PORT = re.compile(r"^(?:(?:(\d+\.\d+\.\d+\.\d+):)?(\d+):)?(\d+)(?:/tcp)?$")
_POLICIES = {"no", "always", "unless-stopped", "on-failure"}


def read_compose(path: Path, *, shell: Mapping[str, str], profiles: Collection[str] = ()) -> ProjectSpec:
    """Reads the project of a Compose file.

    Args:
        shell: variables of the calling shell; they override those of `.env`.
        profiles: services of other profiles are left out.

    Raises:
        ComposeFileError: Compose would refuse the file, or it has an unsupported key.
    """
    folder = path.parent
    dotenv = folder / ".env"
    variables = {**(read_variables(dotenv, shell) if dotenv.is_file() else {}), **shell}
    document = _load(path, variables)
    if unread := {key for key in document if key not in _TOP_KEYS and not key.startswith("x-")}:
        raise ComposeFileError(f"{path}: {', '.join(sorted(unread))} is not read here")
    declared = {name: _extended(document, name, path, variables) for name in document["services"]}
    enabled = {
        name: service
        for name, service in declared.items()
        if not service.get("profiles") or set(service["profiles"]) & set(profiles)
    }
    for service in enabled.values():
        service["depends_on"] = {
            needed: how
            for needed, how in _dependencies(service).items()
            if needed in enabled or how.get("required", True)
        }
    volumes = frozenset(document.get("volumes") or ())
    reader = _ServiceReader(folder, variables, volumes, document.get("secrets") or {})
    services = {name: reader.read(name, service) for name, service in enabled.items()}
    for service in services.values():
        if missing := set(service.needs) - set(services):
            raise ComposeFileError(f"service {service.name} depends on undefined service {', '.join(sorted(missing))}")
    return ProjectSpec(name=document.get("name", folder.name), folder=folder, services=services, volumes=volumes)


def seconds(duration: str | float) -> float:
    """Parses a Compose duration such as `1m30s`; returns seconds."""
    text = str(duration)
    if not text or _DURATION.sub("", text):
        raise ComposeFileError(f"{duration!r} is no duration; write 30s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def _load(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    document = load_yaml(path.read_bytes()).values
    if not isinstance(document, dict) or not isinstance(document.get("services"), dict):
        raise ComposeFileError(f"{path} declares no services")
    return dict(interpolate_tree(document, variables))


def _extended(document: Mapping[str, Any], name: str, path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Merges a service with the service it extends, in this file or another one."""
    if name not in document["services"]:
        raise ComposeFileError(f"{path}: there is no service {name} to extend")
    service = dict(document["services"][name])
    base = service.pop("extends", None)
    if base is None:
        return service
    base = {"service": base} if isinstance(base, str) else base
    if "file" in base:
        path = path.parent / base["file"]
        document = _load(path, variables)
    merged = _merged(_extended(document, base["service"], path, variables), service)
    return dict(merged)


def _merged(base: Any, more: Any, key: str = "") -> Any:
    if isinstance(base, Mapping) and isinstance(more, Mapping):
        both = {name: _merged(base[name], more[name], name) for name in base if name in more}
        return {**base, **more, **both}
    if isinstance(base, list) and isinstance(more, list) and key not in _REPLACED:
        return [*base, *(item for item in more if item not in base)]
    return more


class _ServiceReader:
    """Converts the merged mapping of a service to its spec."""

    def __init__(
        self, folder: Path, shell: Mapping[str, str], volumes: frozenset[str], secrets: Mapping[str, Any]
    ) -> None:
        self._folder = folder
        self._shell = shell
        self._volumes = volumes
        self._secrets = secrets

    def read(self, name: str, service: Mapping[str, Any]) -> ServiceSpec:
        if unread := set(service) - _KEYS:
            raise ComposeFileError(f"service {name}: {', '.join(sorted(unread))} is not read here")
        restart = str(service.get("restart", "no"))
        if restart.partition(":")[0] not in _POLICIES:
            raise ComposeFileError(f"service {name}: invalid restart policy {restart!r}")
        return ServiceSpec(
            name=name,
            image=str(service.get("image", "")),
            is_built="build" in service,
            target=_target(name, service.get("build")),
            entrypoint=_words(service.get("entrypoint")),
            command=_words(service.get("command")),
            variables=self._variables(service),
            hostname=str(service.get("hostname", "")),
            needs={needed: Condition(how["condition"]) for needed, how in _dependencies(service).items()},
            health_check=_health_check(name, service.get("healthcheck")),
            mounts=tuple(self._mounts(name, service)),
            is_read_only=bool(service.get("read_only", False)),
            tmpfs=tuple(map(str, service.get("tmpfs", ()))),
            ports=tuple(_port(name, text) for text in service.get("ports", ())),
            restart=restart,
            stop_grace_seconds=seconds(service.get("stop_grace_period", "10s")),
        )

    def _variables(self, service: Mapping[str, Any]) -> dict[str, str]:
        """Returns the variables of the env files in order, overridden by `environment`."""
        files = service.get("env_file", [])
        variables: dict[str, str] = {}
        for file in [files] if isinstance(files, (str, Mapping)) else files:
            entry = {"path": file} if isinstance(file, str) else file
            path = self._folder / entry["path"]
            if path.is_file() or entry.get("required", True):
                variables |= read_variables(path, self._shell)
        own = service.get("environment") or {}
        pairs = own.items() if isinstance(own, Mapping) else (_pair(text) for text in own)
        for key, value in pairs:
            if value is not None:
                variables[key] = str(value).lower() if isinstance(value, bool) else str(value)
            elif key in self._shell:
                variables[key] = self._shell[key]
            else:
                variables.pop(key, None)
        return variables

    def _mounts(self, name: str, service: Mapping[str, Any]) -> list[MountSpec]:
        mounts = []
        for text in service.get("volumes", ()):
            source, target, *options = str(text).split(":")
            is_volume = not source.startswith((".", "/", "~"))
            if is_volume and source not in self._volumes:
                raise ComposeFileError(f"service {name} refers to undefined volume {source}")
            place = source if is_volume else str((self._folder / source).resolve())
            read_only = "ro" in ",".join(options).split(",")
            mounts.append(MountSpec(source=place, target=target, is_volume=is_volume, read_only=read_only))
        for entry in service.get("secrets", ()):
            reference = {"source": entry} if isinstance(entry, str) else entry
            source = reference["source"]
            if "file" not in (self._secrets.get(source) or {}):
                raise ComposeFileError(f"service {name} refers to undefined secret {source}")
            target = reference.get("target", source)
            path = str((self._folder / self._secrets[source]["file"]).resolve())
            at = target if target.startswith("/") else f"/run/secrets/{target}"
            mounts.append(MountSpec(source=path, target=at, is_volume=False, read_only=True))
        return mounts


def _words(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(shlex.split(value)) if isinstance(value, str) else tuple(str(word) for word in value)


def _pair(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def _dependencies(service: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns a service's dependencies in Compose's long form."""
    needs = service.get("depends_on") or {}
    long = needs if isinstance(needs, Mapping) else dict.fromkeys(needs)
    return {name: {"condition": Condition.STARTED, **(how or {})} for name, how in long.items()}


def _target(name: str, build: Any) -> str:
    """Returns the stage that a `build` of this folder's Dockerfile names, empty for the last one."""
    options = {"context": build} if isinstance(build, str) else dict(build or {"context": "."})
    if set(options) - {"context", "target"} or options["context"] != ".":
        raise ComposeFileError(f"service {name}: this build is not read here: {build}")
    return str(options.get("target", ""))


def _health_check(name: str, value: Mapping[str, Any] | None) -> HealthCheckSpec | None:
    if value is None or value.get("disable") or value.get("test") == ["NONE"]:
        return None
    if unread := set(value) - _HEALTH_KEYS:
        raise ComposeFileError(f"service {name}: healthcheck.{', '.join(sorted(unread))} is not read here")
    test = value["test"]
    if isinstance(test, str):
        test = ["CMD-SHELL", test]
    match test:
        case ["CMD", _, *_]:
            command = tuple(str(word) for word in test[1:])
        case ["CMD-SHELL", str(line)]:
            command = ("/bin/sh", "-c", line)
        case _:
            raise ComposeFileError(f"service {name}: healthcheck.test begins with CMD, CMD-SHELL or NONE")
    names = ("interval", "timeout", "start_period", "start_interval")
    times = {f"{key}_seconds": seconds(value[key]) for key in names if key in value}
    return HealthCheckSpec(command=command, retries=int(value.get("retries", 3)), **times)


def _port(name: str, text: Any) -> PublishedPort:
    match = _PORT.match(str(text))
    if match is None or match[2] is None:
        raise ComposeFileError(f"service {name}: {text!r} is no [address:]port:port")
    return PublishedPort(address=match[1] or "0.0.0.0", port=int(match[2]), container_port=int(match[3]))
