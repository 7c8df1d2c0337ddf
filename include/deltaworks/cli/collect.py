"""`deltaworks collect`: one process of a collector, which accepts events over HTTP; and keys of its sources."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import PipelineArgument, catalog
from deltaworks.cli.output import print_document, print_line
from deltaworks.errors import ConfigError

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

_SOURCES_LINE = re.compile(r"^sources:[ \t]*(#.*)?$", re.MULTILINE)


def collect(
    name: str = typer.Argument(..., help="The collector: a file in include/collectors."),
    spool: Path = typer.Option(
        Path("spool"), envvar="DELTAWORKS_SPOOL", help="Folder that keeps events until their sink has accepted them."
    ),
    host: str = typer.Option("", help="Address to listen on; by default as declared."),
    port: int = typer.Option(-1, min=-1, max=65_535, help="Port to listen on; 0 chooses a free one."),
    metrics_port: int = typer.Option(-1, min=-1, max=65_535, help="Port of GET /metrics; 0 chooses a free one."),
    close_seconds: float = typer.Option(
        0.0, min=0, help="Maximum seconds before a landing object is closed; by default as declared."
    ),
    heartbeat_seconds: float = typer.Option(10.0, min=0.5, help="Seconds between heartbeats."),
    drain_seconds: float = typer.Option(-1.0, min=-1, help="Seconds to keep accepting events after SIGTERM."),
) -> None:
    """Accept events over HTTP and store them on disk until they are delivered. Runs until it is stopped.

    An event is acknowledged once it is on disk. A file in include/collectors declares senders, pipelines and sinks.
    """
    from collector.sinks.factory import open_destinations
    from deltaworks.collector_host.process import CollectorRun, DeclarationWatch
    from deltaworks.collector_host.redaction import open_redaction
    from deltaworks.control.objects import open_objects
    from deltaworks.specs.weak_secrets import check_write_keys

    project = catalog(required_service=None)
    spec = project.collector(name)
    check_write_keys(spec, environment=project.environment.environment)
    enabled = {key: source for key, source in spec.sources.items() if source.pipeline in project.pipelines}
    listen = spec.listen.model_copy(
        update=({"host": host} if host else {})
        | ({"port": port} if port >= 0 else {})
        | ({"metrics_port": metrics_port} if metrics_port >= 0 else {})
    )
    limits = spec.limits.model_copy(update={"drain_seconds": drain_seconds} if drain_seconds >= 0 else {})
    spec = spec.model_copy(update={"listen": listen, "limits": limits, "sources": enabled})
    print_line(f"Collector {name} accepts events of {', '.join(enabled)}; its spool is {spool.absolute()}.")
    objects = open_objects(project.environment.lake)
    watch = DeclarationWatch(project, name)
    process = CollectorRun(
        spec=spec,
        destinations=open_destinations(spec, project, close_seconds=close_seconds or None),
        objects=objects,
        redaction=open_redaction(spec, project, objects),
        root=spool.absolute(),
        beat_seconds=heartbeat_seconds,
    )
    watch.start()
    exit_code = process.run()
    watch.stop(timeout_seconds=10)
    if watch.has_changed and not exit_code:
        print_line(f"The declaration of {name} has changed: the process starts again with it.")
        os.execv(sys.executable, [sys.executable, "-m", "deltaworks.cli", *sys.argv[1:]])  # noqa: S606  itself
    raise typer.Exit(exit_code)


def collector_key(
    pipeline: PipelineArgument,
    key: str = typer.Option("", help="An existing key; by default a new random one is printed, once."),
    collector: str = typer.Option("", help="The collector, if there are several."),
    write: bool = typer.Option(False, "--write", help="Add the source to the collector's file, if it has none yet."),
) -> None:
    """Create a client's key for a pipeline, and print or write its source in a collector's file.

    The file has only the digest. A running collector reads the changed file within seconds.
    """
    from deltaworks.specs.collector_file import collector_files
    from deltaworks.specs.project import load_catalog
    from deltaworks.specs.sources import FileSourceSpec

    project = load_catalog(skip_invalid=True)
    spec = project.pipeline(pipeline)
    files = collector_files(project.root)
    if not collector and len(files) != 1:
        raise typer.BadParameter(f"pass --collector with one of {', '.join(files) or 'none'}")
    name = collector or next(iter(files))
    declared = project.collector(name)
    secret = key or secrets.token_urlsafe(24)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    sink = f"{{kind: {spec.source.kind}}}"
    if isinstance(spec.source, FileSourceSpec):
        sink = f"{{kind: landing, prefix: {spec.source.prefix or f'{pipeline}/'}}}"
    keys = f'    keys: [{{sha256: "{digest}"}}]'
    lines = [f"  {pipeline}:", f"    pipeline: {pipeline}", keys, f"    sink: {sink}"]
    if not key:
        print_line(f"Key: {secret}")
    if pipeline in declared.sources:
        print_line(f"{files[name]} has a source {pipeline}: add this to its `keys`.")
        print_document(f'      - sha256: "{digest}"')
    elif not write:
        print_line(f"Add this to {files[name]}, or use --write:")
        print_document("\n".join(["sources:", *lines]))
    else:
        _add_source(project, name, files[name], lines)
        print_line(f"Written: {files[name]}")
    print_line(f"Clients send it as the user: curl -u {'KEY' if key else secret}: … ADDRESS/v1/events")


def _add_source(project: Catalog, name: str, file: Path, lines: list[str]) -> None:
    """Inserts a source after the line `sources:`, so that comments and order stay. Restores the file if it is invalid.

    Raises:
        ConfigError: SPEC_INVALID.
    """
    from deltaworks.specs.collector_file import load_collector

    before = file.read_text(encoding="utf-8")
    match = _SOURCES_LINE.search(before)
    if match is None:
        raise ConfigError(
            "SPEC_INVALID",
            f"{file} has no line `sources:` by itself, so the source cannot be added.",
            hint="Leave out --write, and add the printed lines by hand.",
        )
    file.write_text("\n".join([before[: match.end()], *lines]) + before[match.end() :], encoding="utf-8")
    try:
        load_collector(name, root=project.root)
    except ConfigError:
        file.write_text(before, encoding="utf-8")
        raise
