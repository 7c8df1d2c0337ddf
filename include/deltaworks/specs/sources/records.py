"""Specs of Kafka topics and Kinesis streams as sources."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import Bytes, SecretReference, Spec, TextOrReference, as_tuple
from deltaworks.specs.sources.payload import RecordSourceSpec
from deltaworks.specs.spec_change_effects import CHANGES_ADDRESS, CHANGES_SOURCE, FIRST_START_ONLY, NEXT_START


class KafkaSecuritySpec(Spec):
    """Authentication and encryption of Kafka clients. Secrets are references; stores are files on driver and workers.

    The `truststore` has the CAs of the brokers; by default the JVM's are used. The `keystore` has the client's
    certificate and key; in PEM files the key comes first.
    """

    protocol: Literal["SSL", "SASL_SSL", "SASL_PLAINTEXT"]
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] | None = None
    username: SecretReference | None = None
    password: SecretReference | None = None
    truststore: TextOrReference | None = None
    truststore_type: Literal["PEM", "PKCS12", "JKS"] = "PEM"
    truststore_password: SecretReference | None = None
    keystore: TextOrReference | None = None
    keystore_type: Literal["PEM", "PKCS12", "JKS"] = "PEM"
    keystore_password: SecretReference | None = None
    key_password: SecretReference | None = None

    @model_validator(mode="after")
    def _check_login_and_stores(self) -> Self:
        with_login = self.protocol.startswith("SASL")
        if with_login != (self.mechanism is not None and self.username is not None and self.password is not None):
            raise ValueError("SASL needs mechanism, username and password; SSL alone has none of them")
        if self.protocol == "SASL_PLAINTEXT" and (self.truststore or self.keystore):
            raise ValueError("SASL_PLAINTEXT uses no truststore and no keystore; with TLS the protocol is SASL_SSL")
        for store in ("truststore", "keystore"):
            display_name, kind, secret = (getattr(self, f"{store}{part}") for part in ("", "_type", "_password"))
            if secret is not None and (display_name is None or kind == "PEM"):
                raise ValueError(f"{store}_password opens a {store} of type PKCS12 or JKS; a PEM file has none")
        if self.keystore is not None and self.keystore_type != "PEM" and self.keystore_password is None:
            raise ValueError(f"a keystore of type {self.keystore_type} needs keystore_password")
        if self.key_password is not None and self.keystore is None:
            raise ValueError("key_password opens the key in a keystore: declare keystore")
        return self


class KafkaSourceSpec(RecordSourceSpec):
    """Topics of a Kafka cluster, read with `read_committed`."""

    kind: Annotated[Literal["kafka"], CHANGES_SOURCE]
    bootstrap_servers: Annotated[TextOrReference, CHANGES_ADDRESS]
    topics: Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1), CHANGES_SOURCE]
    starting_offsets: Annotated[Literal["earliest", "latest"], FIRST_START_ONLY] = "earliest"
    max_records_per_batch: Annotated[int, NEXT_START] = Field(default=500_000, ge=1)
    allow_data_loss: Annotated[bool, NEXT_START] = Field(
        default=False, description="continue after records that expired unread"
    )
    security: Annotated[KafkaSecuritySpec | None, NEXT_START] = None

    @model_validator(mode="after")
    def _check_topics(self) -> Self:
        for topic in self.topics:
            if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic):
                raise ValueError(f"{topic!r} is not a valid topic name")
        if len(set(self.topics)) < len(self.topics):
            raise ValueError("a topic is named twice")
        return self

    def display_name(self) -> str:
        """Returns the topics as messages show them."""
        return ", ".join(self.topics)


class KinesisSourceSpec(RecordSourceSpec):
    """A Kinesis stream, reached with the environment's `messaging`."""

    kind: Annotated[Literal["kinesis"], CHANGES_SOURCE]
    stream: Annotated[str, CHANGES_SOURCE] = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    initial_position: Annotated[Literal["trim_horizon", "latest"], FIRST_START_ONLY] = "trim_horizon"
    max_records_per_batch: Annotated[int, NEXT_START] = Field(default=500_000, ge=1)
    max_bytes_per_batch: Annotated[Bytes, NEXT_START] = 256 << 20
    allow_data_loss: Annotated[bool, NEXT_START] = Field(
        default=False, description="continue after records that expired unread"
    )
    consumer_mode: Annotated[Literal["polling", "fan_out"], NEXT_START] = Field(
        default="polling", description="fan_out: enhanced fan-out with a registered consumer of this pipeline"
    )
    consumer_name: Annotated[str | None, NEXT_START] = Field(
        default=None,
        pattern=r"^[a-zA-Z0-9_.-]{1,128}$",
        description="name of that consumer; by default deltaworks-PIPELINE",
    )

    def display_name(self) -> str:
        """Returns the stream's name as messages show it."""
        return self.stream

    def consumer_name_for(self, pipeline: str) -> str:
        """Returns the name of the consumer that the pipeline registers for enhanced fan-out."""
        return self.consumer_name or f"deltaworks-{pipeline}"
