"""Specs of feeds. A feed delivers changed rows of a gold table or view to a topic, queue, Kafka cluster or webhook."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from deltaworks.specs.base import (
    Name,
    Problem,
    SecretReference,
    Spec,
    TextOrReference,
    as_tuple,
    raise_problems,
)
from deltaworks.specs.record_sources import KafkaSecuritySpec

Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
#: The feed's version lease has the feed's name, which limits its length.
_MAX_NAME_LENGTH = 50


class SqsSinkSpec(Spec):
    """An SQS queue, reached with the environment's `messaging`. A FIFO queue keeps the order per key."""

    kind: Literal["sqs"]
    queue_url: TextOrReference


class SnsSinkSpec(Spec):
    """An SNS topic, reached with the environment's `messaging`. A FIFO topic keeps the order per key."""

    kind: Literal["sns"]
    topic: TextOrReference = Field(description="its ARN")


class KafkaSinkSpec(Spec):
    """A Kafka topic. All rows of a key go to the same partition, in order."""

    kind: Literal["kafka"]
    bootstrap_servers: TextOrReference
    topic: str = Field(min_length=1)
    security: KafkaSecuritySpec | None = None

    @model_validator(mode="after")
    def _check_store_types(self) -> Self:
        security = self.security
        if security is not None and {security.truststore_type, security.keystore_type} != {"PEM"}:
            raise_problems([(("security",), "feeds need truststore and keystore of type PEM: convert them")])
        return self


class WebhookSinkSpec(Spec):
    """A URL that receives batches of changes as JSON by POST."""

    kind: Literal["webhook"]
    url: TextOrReference
    token: SecretReference | None = Field(default=None, description="sent as a bearer token")
    rows_per_call: int = Field(default=100, ge=1, le=1000)
    timeout_seconds: float = Field(default=10.0, gt=0, le=60)

    @field_validator("url")
    @classmethod
    def _check_address(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.startswith(("https://", "http://")):
            raise ValueError("write an address with https://, or a reference, env:NAME")
        return value


SinkSpec = Annotated[SqsSinkSpec | SnsSinkSpec | KafkaSinkSpec | WebhookSinkSpec, Field(discriminator="kind")]


class FeedSpec(Spec):
    """A feed: the table it reads, the key of its rows, its sink, and where it starts."""

    name: Name
    description: str = ""
    reads: Name = Field(description="a gold table or a view of the pipeline")
    key: Names = Field(min_length=1, description="columns that identify a row")
    columns: Names = Field(default=(), description="columns that are sent in addition to the key; by default all")
    to: SinkSpec
    start: Literal["now", "all"] = Field(
        alias="from", description=("all: start with all existing rows; now: only later changes")
    )
    every_seconds: float = Field(default=15, ge=1, le=3600, description="polling interval")
    stale_minutes: float = Field(
        default=15, gt=0, description=("waiting time of a change from which an alert is raised")
    )
    replay_hours: int = Field(
        default=24,
        ge=1,
        le=720,
        description=("how long deliveries can be replayed; retains the required table versions"),
    )
    max_rows: int = Field(
        default=1_000_000, ge=1, description=("maximum number of rows of a view's result, or of a delivery")
    )
    max_dead_letters: int = Field(
        default=1000, ge=0, description=("number of permanently rejected rows in a delivery from which the feed stops")
    )

    model_config = ConfigDict(serialize_by_alias=True)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        problems: list[Problem] = []
        if len(self.name) > _MAX_NAME_LENGTH:
            problems.append((("name",), f"use at most {_MAX_NAME_LENGTH} characters"))
        for field in ("key", "columns"):
            names = getattr(self, field)
            used_names = self.key if field == "columns" else ()
            for position, name in enumerate(names):
                if name in names[:position]:
                    problems.append(((field, position), f"{name!r} is named twice"))
                elif name in used_names:
                    problems.append(((field, position), f"{name!r} is in the key, which is always sent; remove it"))
        raise_problems(problems)
        return self


#: Change types in messages.
UPSERT: Final = "upsert"
DELETE: Final = "delete"
