"""Specs of Kafka topics and Kinesis streams as sources, and of the payload formats of records and objects."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from deltaworks.specs.base import Bytes, SecretReference, Spec, TextOrReference, as_tuple
from deltaworks.specs.spec_change_effects import (
    CHANGES_ADDRESS,
    CHANGES_FORMAT,
    CHANGES_PARSING,
    CHANGES_SOURCE,
    FIRST_START_ONLY,
    NEXT_START,
)

Compression = Literal["auto", "gzip", "bzip2", "zstd", "none"]
#: Formats whose fields are all strings. They are converted to the types of columns.
TEXT_FORMATS = ("csv", "tsv", "text")


class CsvSpec(Spec):
    """CSV format. Field names come from the header, or are declared."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    quote: str = Field(default='"', min_length=1, max_length=1)
    header: bool = True
    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("",)

    # A tab is a delimiter and must not be stripped.
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.header == bool(self.columns):
            raise ValueError("declare columns only with header: false; otherwise the header has the names")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("a column is named twice")
        if self.delimiter == self.quote:
            raise ValueError("delimiter and quote are the same character; no record could be read")
        if {self.delimiter, self.quote} & {"\r", "\n"}:
            raise ValueError("a line break ends a record; choose another delimiter and quote")
        return self


class TsvSpec(Spec):
    """Lines of tab-separated fields. Field names come from the preceding `#Fields:` line, or are declared.

    Lines with the directives `#Version:`, `#Fields:`, `#Software:`, `#Start-Date:`, `#End-Date:`, `#Date:` and
    `#Remark:` are no events; other lines that start with `#` are.
    """

    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("-",)

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("a column is named twice")
        return self


class BudgetSpec(Spec):
    """Limits of the resources that parsing a payload may use. Events beyond a limit are quarantined.

    Limits are counts and sizes, not times, so that the same payload always gives the same rows. Memory is estimated.
    """

    max_scans: Annotated[int, NEXT_START] = Field(
        default=20, ge=2, description="average number of passes over a payload's bytes"
    )
    max_records: Annotated[int | None, NEXT_START] = Field(
        default=None, ge=1, description="events per payload; by default depends on its size, up to 10,000,000"
    )
    max_values: Annotated[int | None, NEXT_START] = Field(
        default=None,
        ge=1,
        description="field values per payload; by default depends on its size, up to 1,000,000,000",
    )
    max_decoded_bytes: Annotated[Bytes, NEXT_START] = Field(
        default=2 << 30, description="memory of values that are decoded at the same time"
    )
    max_partitions: Annotated[int, NEXT_START] = Field(
        default=1_000, ge=1, description="partitions of a table per task and batch"
    )


class PayloadSpec(Spec):
    """The format of the events in an object or record."""

    format: Annotated[Literal["json", "csv", "tsv", "text", "parquet", "avro"], CHANGES_FORMAT] = "json"
    csv: Annotated[CsvSpec, CHANGES_PARSING] = CsvSpec.defaults()
    tsv: Annotated[TsvSpec, CHANGES_PARSING] = TsvSpec.defaults()
    pattern: Annotated[str | None, CHANGES_PARSING] = None
    compression: Annotated[Compression, NEXT_START] = "auto"
    max_event_bytes: Annotated[Bytes, NEXT_START] = 16 << 20
    budget: BudgetSpec = BudgetSpec.defaults()

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        if (self.format == "text") != (self.pattern is not None):
            raise ValueError("format: text needs a pattern, and no other format has one")
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groupindex
            except re.error as error:
                raise ValueError(f"the pattern is not a regular expression: {error}") from None
            if not groups:
                raise ValueError("name the fields in the pattern, such as (?P<time>\\S+)")
        return self


class RecordSourceSpec(PayloadSpec):
    """A stream of records, each of which is a payload.

    Paths starting with `_record.` read record metadata (`key`, `headers`, `timestamp`, ...).
    """

    schema_header: Annotated[Literal["none", "confluent", "glue"], CHANGES_PARSING] = Field(
        default="none",
        description="header that the serializer of a schema registry writes before each payload; it is removed",
    )

    @model_validator(mode="after")
    def _check_record_format(self) -> Self:
        if self.format == "csv" and self.csv.header:
            raise ValueError("a record has no header line: declare csv with header: false and its columns")
        if self.format == "tsv" and not self.tsv.columns:
            raise ValueError("a record has no #Fields line: declare the columns of tsv")
        if self.format in ("parquet", "avro"):
            raise ValueError(f"{self.format} is a format of objects, not of records")
        return self


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
    tombstones: Annotated[Literal["quarantine", "event"], NEXT_START] = "quarantine"

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
