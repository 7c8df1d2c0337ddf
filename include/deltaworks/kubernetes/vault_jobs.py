"""CronJobs of the vault, with a separate service account that is the only one with access to the vault.

Airflow tasks and drivers share their accounts. With access to the vault, these accounts would grant it to the code of
every pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deltaworks.kubernetes.pods import (
    VAULT_ACCOUNT,
    Manifest,
    container,
    from_secret,
    labels,
    metadata,
    pod,
    secret_names,
)
from deltaworks.specs.base import find_references
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.kubernetes import KubernetesSpec
from deltaworks.specs.privacy_settings import VAULT_SCHEDULES


def vault_jobs(catalog: Catalog, spec: KubernetesSpec, settings: Mapping[str, str]) -> Iterator[Manifest]:
    """Yields a CronJob per namespace and operation. Yields none if the environment declares no vault."""
    environment = catalog.environment
    if environment.privacy is None:
        return
    refers_to = [environment.lake, environment.landing, environment.privacy]
    variables = from_secret(spec, secret_names(find_references(refers_to), settings))
    for namespace in catalog.namespaces:
        for operation, schedule in VAULT_SCHEDULES.items():
            arguments = ["python", "-m", "deltaworks.operations", operation, "--namespace", namespace, "--no-dry-run"]
            main = container(spec, "vault", arguments, size=spec.vault, variables=variables)
            details = pod(spec, [main], restartPolicy="Never") | {"serviceAccountName": VAULT_ACCOUNT}
            name = f"vault-{operation.removesuffix('_vault')}-{namespace.replace('_', '-')}"
            yield {
                "apiVersion": "batch/v1",
                "kind": "CronJob",
                "metadata": metadata(spec, name, "vault", namespace),
                "spec": {
                    "schedule": schedule.cron,
                    "timeZone": "Etc/UTC",
                    # Concurrent runs would wait for the same lock. The next run processes everything that is pending.
                    "concurrencyPolicy": "Forbid",
                    "jobTemplate": {
                        "spec": {
                            "backoffLimit": 1,
                            "activeDeadlineSeconds": schedule.hours * 3600,
                            "template": {"metadata": {"labels": labels("vault", namespace)}, "spec": details},
                        }
                    },
                },
            }
