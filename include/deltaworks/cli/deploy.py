"""`deltaworks deploy`: Kubernetes manifests, rendered from the environment and the specs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.output import print_document, print_line

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

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
