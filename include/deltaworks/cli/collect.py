"""`deltaworks collect`: one process of a collector, which accepts events over HTTP."""

from __future__ import annotations

from pathlib import Path

import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import print_line


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
    from deltaworks.collector_host.process import CollectorRun
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
    process = CollectorRun(
        spec=spec,
        destinations=open_destinations(spec, project, close_seconds=close_seconds or None),
        objects=objects,
        redaction=open_redaction(spec, project, objects),
        root=spool.absolute(),
        beat_seconds=heartbeat_seconds,
    )
    raise typer.Exit(process.run())
