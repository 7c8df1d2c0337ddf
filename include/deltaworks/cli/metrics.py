"""`deltaworks metrics`: serves metrics of all declared processes to Prometheus."""

from __future__ import annotations

import sys

import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import print_document, print_line
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.metrics.samples import Sample, read_samples
from deltaworks.specs.catalog import Catalog

#: The default port. No exporter that is registered with Prometheus uses it.
PORT = 9478


def metrics(
    port: int = typer.Option(PORT, min=0, max=65535, help="Port to listen on; 0 chooses a free one."),
    host: str = typer.Option("127.0.0.1", help="Address to bind to. There is no login: allow only Prometheus."),
    once: bool = typer.Option(False, "--once", help="Print current metrics and exit."),
) -> None:
    """Serve metrics of streams, relays, collectors, gold and alerts to Prometheus, until it is stopped."""
    from deltaworks.console.cached_objects import CatalogCache
    from deltaworks.metrics.samples import MetricsCollector, build_registry, serve_metrics

    # Specs are read again only if a file has changed, to keep scrapes cheap.
    cache = CatalogCache(lambda: catalog(required_service=None))
    cache.current()
    figures = MetricsCollector(lambda: _read(cache.current()))
    if once:
        from prometheus_client import generate_latest

        print_document(generate_latest(build_registry(figures)).decode().rstrip())
        return
    try:
        server, thread = serve_metrics(figures, host=host, port=port)
    except OSError as error:
        raise ConfigError("METRICS_PORT_TAKEN", f"{host}:{port} cannot be bound: {error}.") from error
    print_line(f"Figures for Prometheus: http://{host}:{server.server_port}/metrics")
    sys.stdout.flush()
    try:
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()


def _read(project: Catalog) -> list[Sample]:
    return read_samples(project, open_objects(project.environment.lake), now=utc_now())
