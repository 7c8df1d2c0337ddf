"""Kubernetes settings of an environment, used to generate manifests, service accounts and Spark pods."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deltaworks.specs.base import Name, Spec, TextOrReference

#: A valid Kubernetes object name.
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Cpu = Annotated[str, Field(pattern=r"^[1-9]\d*m?$", description="cores or millicores: 2, 500m")]
Memory = Annotated[str, Field(pattern=r"^[1-9]\d*(Mi|Gi)$", description="512Mi, 2Gi")]


class PodSize(Spec):
    """Resource requests of a pod. Memory is limited to the request; CPU is not limited."""

    cpu: Cpu = "250m"
    memory: Memory = "512Mi"


class CollectorPodsSpec(PodSize):
    """The pods of a collector. Each has a volume for its spool."""

    name: Name = Field(description="a file in include/collectors")
    replicas: int = Field(default=2, ge=1)
    spool_size: Memory = Field(
        default="20Gi", description=("size of each pod's volume; more than the spool's max_bytes")
    )
    storage_class: ObjectName | None = Field(
        default=None, description=("storage class of the volumes; by default the cluster's")
    )


class KubernetesSpec(Spec):
    """The cluster that runs relays, Spark drivers and executors, and the collector."""

    image: TextOrReference = Field(description="image built from docker/kubernetes.Dockerfile")
    namespace: ObjectName = "deltaworks"
    secret: ObjectName = Field(default="deltaworks", description="Secret with the secret variables")
    image_pull_secrets: tuple[ObjectName, ...] = ()
    service_account_annotations: dict[str, str] = Field(
        default_factory=dict, description=("annotations of the accounts with access to the lake, such as a cloud role")
    )
    airflow_service_accounts: tuple[ObjectName, ...] = Field(
        default=("airflow-scheduler",),
        description=("accounts of Airflow tasks that start drivers, in the same namespace"),
    )
    vault_account_annotations: dict[str, str] = Field(
        default={}, description="annotations of the account of vault jobs, the only one with access to the vault"
    )
    relay: PodSize = PodSize.defaults()
    vault: PodSize = Field(default=PodSize.defaults(), description="pods of vault jobs")
    deadman: PodSize = PodSize.defaults()
    collector: CollectorPodsSpec | None = None
