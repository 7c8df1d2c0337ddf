"""Spec of an environment: storages, messaging, Spark, Airflow, and overrides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from deltaworks.specs.alert_channels import AlertsSpec, webhook_channel
from deltaworks.specs.base import (
    Name,
    Reference,
    SecretReference,
    Spec,
    TextOrReference,
    raise_problems,
    resolve_text,
    suggest_name,
)
from deltaworks.specs.environment_sections import CatalogSpec, KubernetesSpec, RemediationSpec, remediation_problems
from deltaworks.specs.maintenance import MaintenanceEngine
from deltaworks.specs.privacy import PrivacySettings
from deltaworks.specs.shares import ClusterShares
from deltaworks.specs.sql_server import SparkConnectSpec, SqlServerSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec

#: Environment variable with a webhook URL for alerts. Needs no change of the environment's file.
WEBHOOK_VARIABLE = "DELTAWORKS_ALERTS_WEBHOOK"


class SparkSpec(Spec):
    """Spark settings of all drivers in this environment, in addition to those of Deltaworks."""

    driver_memory: str = Field(default="1g", pattern=r"^\d+[mg]$")
    shuffle_partitions: int = Field(default=4, ge=1)
    conf: dict[str, str] = Field(default_factory=dict)
    java_options: str = Field(default="", description="added to the default options of drivers and executors")
    protected: bool | None = Field(
        default=None,
        description=("authentication and encryption between drivers and executors; required for a standalone master"),
    )
    secret: SecretReference | None = Field(
        default=None, description="secret of a standalone cluster; YARN and Kubernetes generate one per application"
    )

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if self.secret is not None and not self.protected:
            raise ValueError("secret requires protected: true; write that, or remove secret")
        return self


def airflow_address(url: str) -> str:
    """Returns the URL of an Airflow, without a trailing slash.

    Raises:
        ValueError: what to write instead.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("write the URL of Airflow, such as https://airflow.example.com")
    if "@" in parts.netloc:
        raise ValueError("the URL must not contain a login: write username and password: env:NAME")
    bare = f"{parts.scheme}://{parts.netloc}{parts.path.partition('/api/')[0]}".rstrip("/")
    if url.rstrip("/") != bare:
        raise ValueError(f"the URL must end before /api, ? and #: write {bare}")
    return bare


class AirflowSpec(Spec):
    """The address of Airflow's API and the login of commands and the health check.

    With a username and password a token is fetched and renewed; alternatively give a `token`.
    """

    url: TextOrReference = Field(description="URL of the API server, including its base path")
    username: TextOrReference | None = None
    password: SecretReference | None = None
    token: SecretReference | None = Field(default=None, description="a bearer token, instead of a login")
    verify: bool = Field(default=True, description="whether the certificate of an https address is checked")
    ca: TextOrReference | None = Field(
        default=None, description=("PEM file of its CA, if the system does not trust it")
    )
    public_url: TextOrReference | None = Field(default=None, description="URL for links; by default `url`")
    asset_seconds: float | None = Field(
        default=60,
        ge=60,
        description="minimum interval of the asset events of a table that a stream writes; null: no events",
    )

    @field_validator("url", "public_url")
    @classmethod
    def _check_address(cls, value: Any) -> Any:
        return airflow_address(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        login = (self.username, self.password)
        if self.token is not None and any(part is not None for part in login):
            raise_problems([(("token",), "give either token, or username and password")])
        if self.token is None and any(part is None for part in login):
            raise ValueError("a login is required: username and password: env:NAME, or token: env:NAME")
        if not self.verify and self.ca is not None:
            raise_problems([(("verify",), "verify: false ignores ca: remove one of the two")])
        if isinstance(self.url, str) and self.url.startswith("http://") and (self.ca is not None or not self.verify):
            key = "ca" if self.ca is not None else "verify"
            raise_problems([((key,), f"{key} only applies to https://, and url has none: remove it")])
        return self


def _parse_person(declared: Any) -> Any:
    return {"id": declared} if isinstance(declared, str) else declared


class PersonSpec(Spec):
    """A person by user id in Airflow's auth manager, and the user name if it differs from the id."""

    id: str = Field(min_length=1)
    name: str = ""

    def is_named(self, *names: str) -> bool:
        """Returns whether one of these is the person's id or user name."""
        return bool({self.id, self.name} & {name for name in names if name})


Approvers = tuple[Annotated[PersonSpec, BeforeValidator(_parse_person)], ...]


class ApprovalsSpec(Spec):
    """Who may approve operations. A pipeline's own `approvers` replace this list."""

    approvers: Approvers = Field(default=(), description="by default anyone with the permission in Airflow")
    self_approval: bool = Field(default=False, description="people may approve their own requests")


#: OpenLineage's transport types with their required settings.
LINEAGE_TRANSPORTS = {"http": ("url",), "file": ("log_file_path",), "console": (), "kafka": ("topic", "config")}
_SECRET_SETTINGS = ("password", "apikey", "api_key", "secret", "token")


class LineageSpec(Spec):
    """Where OpenLineage events of streams, gold builds and mutations are sent.

    `transport` is passed to OpenLineage's client, whose docs list its settings; secrets are references.
    """

    transport: dict[str, Any]
    namespace: str = Field(default="deltaworks", min_length=1, description="namespace of the jobs")
    every_seconds: float = Field(default=60, ge=1, description="minimum interval of RUNNING events")

    @field_validator("transport")
    @classmethod
    def _check_transport(cls, transport: dict[str, Any]) -> dict[str, Any]:
        kind = str(transport.get("type", ""))
        if kind not in LINEAGE_TRANSPORTS:
            raise ValueError(f"unknown transport type: {kind!r}; {suggest_name(kind, LINEAGE_TRANSPORTS)}")
        missing = [name for name in LINEAGE_TRANSPORTS[kind] if not transport.get(name)]
        if missing:
            raise ValueError(f"a transport of the type {kind} needs {', '.join(missing)}")
        for name, value in _string_settings(transport):
            if any(part in name.lower() for part in _SECRET_SETTINGS) and not value.startswith("env:"):
                raise ValueError(f"{name} is a secret: write a reference, env:NAME")
        return transport

    def resolved_transport(self) -> dict[str, Any]:
        """Returns the transport's settings with all references replaced by their values.

        Raises:
            ConfigError: REFERENCE_UNRESOLVED.
        """
        resolved: dict[str, Any] = _resolve_references(self.transport)
        return resolved


def _string_settings(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _string_settings(value)
        elif isinstance(value, str):
            yield name, value


def _resolve_references(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _resolve_references(part) for name, part in value.items()}
    if isinstance(value, str) and value.startswith("env:"):
        return resolve_text(Reference(scheme="env", name=value.removeprefix("env:")))
    return value


class StreamGroupSpec(Spec):
    """Settings of a stream group. All times are in seconds."""

    driver_memory: str = Field(default="1g", pattern=r"^\d+[mg]$", description="memory of the group's driver")
    max_run_seconds: int | None = Field(
        default=None,
        ge=10,
        description=("counted from the first batch of any member; by default the minimum of the members"),
    )
    non_outage_failures: int = Field(
        default=5, ge=1, description="a member that fails so often in a row, each time early, is parked"
    )


class PricesSpec(Spec):
    """Prices in one currency. A price that is not given is 0."""

    currency: str = Field(min_length=1, max_length=8, description="currency code, such as USD")
    stored_per_tb_month: float = Field(default=0.0, ge=0, description="10^12 bytes stored for 30 days")
    rewritten_per_tb: float = Field(default=0.0, ge=0, description="10^12 bytes that OPTIMIZE rewrites (requests)")
    core_hour: float = Field(default=0.0, ge=0, description="one core for an hour")


class EnvironmentSpec(Spec):
    """An environment in which the project runs. Declared in `include/environments/<name>.yaml`."""

    environment: Name
    lake: StorageSpec
    landing: StorageSpec
    messaging: AwsSpec
    spark: SparkSpec = SparkSpec.defaults()
    shares: ClusterShares = ClusterShares.defaults()
    maintenance_on: MaintenanceEngine = Field(
        default="spark",
        description=(
            "what does the work of nightly maintenance. spark: jobs that spark-submit runs; auto: looks first without "
            "a JVM and submits a job where there is work; process: processes without Spark, jobs only for what needs it"
        ),
    )
    stream_groups: dict[Name, StreamGroupSpec] = Field(default_factory=dict)
    alerts: AlertsSpec = AlertsSpec.defaults()
    approvals: ApprovalsSpec = ApprovalsSpec.defaults()
    airflow: AirflowSpec | None = None
    operation_dags: tuple[Name, ...] | None = Field(
        default=None, description="pipelines with DAGs for operations; by default all. Commands are not affected"
    )
    lineage: LineageSpec | None = None
    catalogs: tuple[CatalogSpec, ...] = Field(
        default=(), description="catalogs of other engines in which all tables are registered and kept up"
    )
    kubernetes: KubernetesSpec | None = None
    prices: PricesSpec | None = Field(default=None, description="prices of storage and compute, for the cost page")
    remediations: tuple[RemediationSpec, ...] = Field(
        default=(), description="automatic actions when a rule fires: weights of targets are shifted within limits"
    )
    privacy: PrivacySettings | None = Field(default=None, description="key service and vault of personal data")
    sql_server: SqlServerSpec | None = Field(
        default=None, description="SQL for BI tools, by Arrow Flight SQL; by default there is no server"
    )
    spark_connect: SparkConnectSpec | None = Field(
        default=None, description="remote Spark sessions on the cluster; by default there is no server"
    )
    overrides: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_remediations(self) -> Self:
        raise_problems(remediation_problems(self.remediations))
        return self

    @model_validator(mode="after")
    def _check_catalogs(self) -> Self:
        problems, first = [], dict[str, int]()
        for index, one in enumerate(self.catalogs):
            if one.name in first:
                problems.append((("catalogs", index, "name"), f"catalog {one.name!r} is declared twice; rename one"))
            first.setdefault(one.name, index)
            if one.kind == "glue" and self.lake.scheme != "s3":
                problems.append((("catalogs", index, "kind"), "Glue only has tables on S3, and the lake is a folder"))
        raise_problems(problems)
        return self

    @model_validator(mode="after")
    def _check_spark_connect(self) -> Self:
        if self.spark_connect is not None and self.spark_connect.access_key is not None and self.lake.scheme != "s3":
            raise_problems([(("spark_connect", "access_key"), "the lake is a folder, which has no keys: remove it")])
        return self

    @model_validator(mode="after")
    def _check_kubernetes(self) -> Self:
        """Rejects settings that Kubernetes does not support: pods cannot read Airflow connections, and Spark generates
        its secret.
        """
        if self.kubernetes is None:
            return self
        named = [name for name in ("lake", "landing", "messaging") if getattr(self, name).aws_conn_id is not None]
        problems = [
            (
                (name, "aws_conn_id"),
                "pods cannot read Airflow connections: write access_key and secret_key, or assign a role with "
                "kubernetes.service_account_annotations",
            )
            for name in named
        ]
        if self.spark.secret is not None:
            problems.append(
                (("spark", "secret"), ("on Kubernetes each application generates its own secret: remove it"))
            )
        raise_problems(problems)
        return self

    def has_operation_dags(self, pipeline: str) -> bool:
        """Returns whether the operations of a pipeline have DAGs."""
        return self.operation_dags is None or pipeline in self.operation_dags

    def with_webhook(self, url: str) -> Self:
        """Returns the environment with a further channel `webhook` for the URL in WEBHOOK_VARIABLE.

        A declared channel of that name has priority. The URL, usually a secret, is not stored: it is read when a
        notification is sent. A URL of Slack or Teams gets the chat's own format.

        Args:
            url: the variable's value; an empty one adds no channel.
        """
        if not url or any(channel.name == "webhook" for channel in self.alerts.channels):
            return self
        channel = webhook_channel("webhook", url, f"env:{WEBHOOK_VARIABLE}")
        alerts = self.alerts.model_copy(update={"channels": (*self.alerts.channels, channel)})
        return self.model_copy(update={"alerts": alerts})
