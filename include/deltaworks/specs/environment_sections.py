"""Sections of an environment: Kubernetes, from which manifests, service accounts and Spark pods are generated; catalogs
in which tables are registered (AWS Glue, Unity Catalog, a Hive metastore); and remediations, which shift weights of
targets within limits when a rule fires.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from deltaworks.specs.base import Name, Problem, SecretReference, Spec, TextOrReference, raise_problems
from deltaworks.specs.storage import AwsSpec

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


class _CatalogSettings(Spec):
    """Settings that all catalogs have."""

    name: Name
    pipelines: tuple[Name, ...] | None = Field(default=None, description="only these pipelines; by default all")
    drop: bool = Field(
        default=False,
        description="drop entries of tables that no longer exist; otherwise only `catalogs sync --drop` does",
    )

    def includes(self, pipeline: str) -> bool:
        """Returns whether the catalog has the tables of a pipeline."""
        return self.pipelines is None or pipeline in self.pipelines


class GlueCatalogSpec(_CatalogSettings, AwsSpec):
    """AWS Glue, which Athena, Trino, EMR and Redshift Spectrum read. Each pipeline is a database."""

    kind: Literal["glue"]
    catalog_id: str | None = Field(default=None, description="account of the catalog; by default that of the keys")
    database_prefix: str = Field(default="", pattern=r"^[a-z0-9_]*$", description="prefix of the database names")


class UnityCatalogSpec(_CatalogSettings):
    """A Unity Catalog server, by its REST API 2.1. Each pipeline is a schema."""

    kind: Literal["unity"]
    url: TextOrReference = Field(description="address of the server, before /api")
    catalog: str = Field(default="deltaworks", pattern=r"^[A-Za-z0-9_]+$", description="created if it does not exist")
    token: SecretReference | None = Field(default=None, description="sent as a bearer token")
    timeout_seconds: float = Field(default=20.0, gt=0, le=120)

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: TextOrReference) -> TextOrReference:
        if isinstance(value, str) and not value.startswith(("http://", "https://")):
            raise ValueError("write the URL of the server, such as https://unity.example.com")
        return value


class HiveCatalogSpec(_CatalogSettings):
    """A Hive metastore, reached by a Spark session of its own. Each pipeline is a database."""

    kind: Literal["hive"]
    uri: TextOrReference | None = Field(
        default=None, description="thrift address; by default that of hive-site.xml on the class path"
    )
    conf: dict[str, str] = Field(default_factory=dict, description="further settings of the session")


CatalogSpec = Annotated[GlueCatalogSpec | UnityCatalogSpec | HiveCatalogSpec, Field(discriminator="kind")]


_RULE = re.compile(r"^[a-z][a-z0-9_]{0,62}\.[a-z][a-z0-9_]{0,62}$")


def _check_rule(value: str) -> str:
    if not _RULE.match(value):
        raise ValueError("write pipeline.rule, such as video_qos.cdn_slow")
    return value


class TrafficWebhookSpec(Spec):
    """A URL that stores the weights of targets: GET returns them, POST sets them."""

    kind: Literal["webhook"]
    url: TextOrReference
    token: SecretReference | None = Field(default=None, description="sent as a bearer token")
    timeout_seconds: float = Field(default=10.0, gt=0, le=60)

    @field_validator("url")
    @classmethod
    def _check_address(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.startswith(("https://", "http://")):
            raise ValueError("write an address with https://, or a reference, env:NAME")
        return value


class VerifySpec(Spec):
    """When a shift is verified after it was made, and the relative improvement that it must bring."""

    after_minutes: float = Field(gt=0)
    min_improvement: float = Field(gt=0, lt=1)


class RemediationSpec(Spec):
    """A remediation: its rule, its action and its limits."""

    name: Name
    description: str = ""
    owner: str = "data-platform"
    queue_url: TextOrReference = Field(description="a queue of SQS that is subscribed to the topic of notifications")
    rule: Annotated[str, AfterValidator(_check_rule)] = Field(description="the rule, as pipeline.rule")
    label: Name = Field(description="the label of the rule whose values are targets")
    action: TrafficWebhookSpec
    targets: tuple[str, ...] = Field(description="values of the label, which are also the target names of the webhook")
    step: float = Field(gt=0, description="weight moved per shift; weights add up to 1")
    floor: float = Field(default=0.1, ge=0, description="minimum weight of each target")
    cooldown_minutes: float = Field(default=15, ge=1)
    max_per_day: int = Field(default=4, ge=1, le=100)
    ttl_seconds: float = Field(default=60, ge=0, description="TTL of the DNS records with the weights")
    verify: VerifySpec
    dry_run: bool = Field(default=True, description="only notifies about the action, without calling the webhook")

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        problems: list[Problem] = []
        if len(set(self.targets)) < max(2, len(self.targets)):
            problems.append((("targets",), "give at least two distinct targets"))
        if self.floor * len(self.targets) > 1:
            most = 1 / max(1, len(self.targets))
            problems.append(
                (("floor",), f"{len(self.targets)} targets cannot all have {self.floor:g}; write {most:g} at most")
            )
        if self.step > 0.5:
            problems.append((("step",), "the maximum step is 0.5: write 0.2, for example"))
        if 60 * self.verify.after_minutes <= self.ttl_seconds:
            text = f"clients see a shift up to {self.ttl_seconds:g} s later (ttl_seconds): verify after that"
            problems.append((("verify", "after_minutes"), text))
        raise_problems(problems)
        return self


def remediation_problems(remediations: tuple[RemediationSpec, ...]) -> list[Problem]:
    """Returns problems of remediations: names used twice, and rules with two remediations."""
    problems: list[Problem] = []
    for index, spec in enumerate(remediations):
        for other in remediations[:index]:
            if other.name == spec.name:
                problems.append(
                    (("remediations", index, "name"), (f"remediation {spec.name!r} is declared twice; rename one"))
                )
            elif other.rule == spec.rule:
                text = f"{other.name!r} already acts on {spec.rule}, and two would interfere; remove one"
                problems.append((("remediations", index, "rule"), text))
    return problems
