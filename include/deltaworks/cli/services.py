"""Commands of processes that serve a stack: the console for this machine only, metrics for Prometheus, Kubernetes
manifests.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import apply_settings, catalog
from deltaworks.cli.output import print_document, print_line
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError

if TYPE_CHECKING:
    from deltaworks.metrics.samples import Sample
    from deltaworks.specs.catalog import Catalog


_PORT_RANGE = (0, 65_535)
_LOOPBACK = "127.0.0.1"


def console(
    port: int = typer.Option(
        8990, min=_PORT_RANGE[0], max=_PORT_RANGE[1], help=("Port to listen on; 0 chooses a free one.")
    ),
    host: str = typer.Option(_LOOPBACK, help="Address to bind to; only the loopback address is allowed."),
) -> None:
    """Serve the operator console on this machine only, read-only, until it is ended."""
    apply_settings()
    catalog()  # report invalid specs here, not on the first page
    listener = open_listener(host, port)
    import uvicorn

    from deltaworks.console.standalone import SingleUser, build_standalone

    reader = SingleUser()
    print_line(f"The console is at http://{_LOOPBACK}:{listener.getsockname()[1]}/open/{reader.login_key}")
    print_line("The URL works once and only on this machine. Press Ctrl-C to stop.")
    config = uvicorn.Config(build_standalone(reader), log_level="warning", access_log=False)
    uvicorn.Server(config).run([listener])


def open_listener(host: str, port: int) -> socket.socket:
    """Opens a socket on the loopback address.

    Raises:
        ConfigError: CONSOLE_NOT_LOOPBACK, CONSOLE_PORT_TAKEN.
    """
    if host not in (_LOOPBACK, "localhost"):
        raise ConfigError(
            "CONSOLE_NOT_LOOPBACK",
            f"This console has no logins, so it does not bind to {host!r}.",
            hint=f"From another machine: `ssh -L {port}:{_LOOPBACK}:{port} THIS_MACHINE` and open the URL there. "
            "For several people it is in Airflow, below /deltaworks/, behind Airflow's logins.",
        )
    try:
        return socket.create_server((_LOOPBACK, port))
    except OSError as error:
        raise ConfigError("CONSOLE_PORT_TAKEN", f"{_LOOPBACK}:{port} cannot be bound: {error}.") from error


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
    from deltaworks.metrics.samples import read_samples

    return read_samples(project, open_objects(project.environment.lake), now=utc_now())


app = typer.Typer(no_args_is_help=True)
SETTINGS_OPTION = typer.Option(..., "--settings", help="File of non-secret variables, such as docker/aws.env.")


@app.command()
def kubernetes(settings: Path = SETTINGS_OPTION) -> None:
    """Print the manifests of the environment that DELTAWORKS_ENVIRONMENT of the settings names, for kubectl apply -f -.

    The required keys of the Secret are printed to standard error. Values of secrets are neither read nor printed.
    """
    from deltaworks.kubernetes.manifests import manifests, require_kubernetes, secret_keys, to_yaml

    catalog, variables = _load_settings(settings)
    print_document(to_yaml(manifests(catalog, variables)))
    spec = require_kubernetes(catalog)
    print_line(
        f"Secret {spec.secret} in namespace {spec.namespace} needs: "
        f"{', '.join(secret_keys(catalog, variables)) or 'nothing'}.",
        error=True,
    )


def _load_settings(settings: Path) -> tuple[Catalog, dict[str, str]]:
    """Loads the specs with these settings. Raises for any invalid spec."""
    from deltaworks.kubernetes.manifests import read_variables, reject_secrets
    from deltaworks.specs.project import load_catalog

    variables = read_variables(settings)
    os.environ.update(variables)
    catalog = load_catalog()
    reject_secrets(variables, settings, catalog)
    return catalog, variables
