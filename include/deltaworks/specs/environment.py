"""An environment: its storages, its messaging, its Spark settings, its channels of alerts, and what it overrides."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import Name, SecretReference, Spec, TextOrReference
from deltaworks.specs.groups import StreamGroupSpec
from deltaworks.specs.shares import ClusterShares
from deltaworks.specs.storage import AwsSpec, StorageSpec

Severity = Literal["info", "warning", "critical"]
#: An address that alerts are posted to, where the environment is not to be edited for it.
WEBHOOK_VARIABLE = "DELTAWORKS_ALERTS_WEBHOOK"


class ChannelSpec(Spec):
    """What every channel has. `resolved: false` leaves out notices of the end of alerts."""

    name: Name
    min_severity: Severity = "warning"
    resolved: bool = True


class SnsChannelSpec(ChannelSpec):
    """A topic of SNS, reached as the environment's `messaging` is, or by an Airflow connection.

    On a FIFO topic (its name ends with `.fifo`) a notice that is sent twice arrives once. Subscriptions that cannot be
    delivered to send to `dead_letters`; `deltaworks alerts check` names those that do not.
    """

    kind: Literal["sns"]
    topic: TextOrReference
    dead_letters: TextOrReference | None = Field(default=None, description="ARN of an SQS queue")
    aws_conn_id: str | None = Field(default=None, description="Airflow's connection, where Airflow sends")


class WebhookChannelSpec(ChannelSpec):
    """An address that takes each notice as JSON by POST."""

    kind: Literal["webhook"]
    url: TextOrReference
    token: SecretReference | None = Field(default=None, description="sent as a bearer token")
    timeout_seconds: float = Field(default=5.0, gt=0, le=60)


class LogChannelSpec(ChannelSpec):
    """The log of whatever sends."""

    kind: Literal["log"]


AnyChannelSpec = Annotated[SnsChannelSpec | WebhookChannelSpec | LogChannelSpec, Field(discriminator="kind")]


class AlertsSpec(Spec):
    """The channels of an environment, each of which gets what is severe enough for it."""

    channels: tuple[AnyChannelSpec, ...] = (
        LogChannelSpec.model_construct(kind="log", name="log", min_severity="info"),
    )
    deadman_seconds: float = Field(
        default=300, ge=60, description="the health check's own heartbeat is alerted on from this age on"
    )
    docs_url: str = Field(default="", description="where the pages of docs/ are read; runbooks are given below it")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [channel.name for channel in self.channels]
        if len(set(names)) < len(names):
            raise ValueError("two channels have the same name")
        return self


class SparkSpec(Spec):
    """What every Spark driver of this environment gets on top of Deltaworks' own settings."""

    driver_memory: str = Field(default="1g", pattern=r"^\d+[mg]$")
    shuffle_partitions: int = Field(default=4, ge=1)
    conf: dict[str, str] = Field(default_factory=dict)
    java_options: str = Field(default="", description="on top of what drivers and executors get anyway")
    protected: bool | None = Field(
        default=None,
        description="drivers and executors authenticate, and encrypt what they send and spill; with a standalone "
        "master it has to be said",
    )
    secret: SecretReference | None = Field(
        default=None, description="of a standalone cluster; YARN and Kubernetes make their own for each application"
    )

    @model_validator(mode="after")
    def _secret_of_protected(self) -> Self:
        if self.secret is not None and not self.protected:
            raise ValueError("secret is of a cluster with protected: true; write that, or remove secret")
        return self


def _as_person(declared: Any) -> Any:
    return {"id": declared} if isinstance(declared, str) else declared


class PersonSpec(Spec):
    """A person by the id that Airflow's auth manager has, with the name where that is another."""

    id: str = Field(min_length=1)
    name: str = ""

    def is_named(self, *names: str) -> bool:
        """Whether the person is one of these ids or names."""
        return bool({self.id, self.name} & {name for name in names if name})


Approvers = tuple[Annotated[PersonSpec, BeforeValidator(_as_person)], ...]


class ApprovalsSpec(Spec):
    """Who approves. A pipeline's own `approvers` stand instead of these."""

    approvers: Approvers = Field(default=(), description="without any, whoever may answer in Airflow")
    self_approval: bool = Field(default=False, description="people may approve their own requests")


class EnvironmentSpec(Spec):
    """`include/environments/<name>.yaml`."""

    environment: Name
    lake: StorageSpec
    landing: StorageSpec
    messaging: AwsSpec
    spark: SparkSpec = SparkSpec.defaults()
    shares: ClusterShares = ClusterShares.defaults()
    stream_groups: dict[Name, StreamGroupSpec] = Field(default_factory=dict)
    alerts: AlertsSpec = AlertsSpec.defaults()
    approvals: ApprovalsSpec = ApprovalsSpec.defaults()
    overrides: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)

    def with_webhook(self, url: str) -> Self:
        """The environment with a channel `webhook` that takes the address of WEBHOOK_VARIABLE.

        One that is declared under that name stays. The address itself, which is a secret as a rule, is read when a
        notice is sent.

        Args:
            url: the variable's value; empty adds nothing.
        """
        if not url or any(channel.name == "webhook" for channel in self.alerts.channels):
            return self
        channel = WebhookChannelSpec(kind="webhook", name="webhook", url=f"env:{WEBHOOK_VARIABLE}")
        alerts = self.alerts.model_copy(update={"channels": (*self.alerts.channels, channel)})
        return self.model_copy(update={"alerts": alerts})
