"""What a pipeline reads: objects announced through a relay, records of a stream, or rows of a Delta table."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from deltaworks.errors import ContractError
from deltaworks.specs.base import Bytes, Name, SecretReference, Spec, TextOrReference, as_tuple
from deltaworks.specs.globs import Glob

Compression = Literal["auto", "gzip", "bzip2", "zstd", "none"]
#: Forms whose fields are all texts; what they stand for, the declared types of columns say.
TEXT_FORMATS = ("csv", "tsv", "text")


class CsvSpec(Spec):
    """How CSV is written. Names of fields come from the first record, or are declared."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    quote: str = Field(default='"', min_length=1, max_length=1)
    header: bool = True
    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("",)

    # A tab is a delimiter, not white space around one.
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.header == bool(self.columns):
            raise ValueError("declare columns with header: false; with a header it has the names")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("a column is named twice")
        return self


class TsvSpec(Spec):
    """How lines of fields between tabs are written. Names of fields come from the `#Fields:` line before them, or are
    declared for payloads that have none."""

    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("-",)


class PayloadSpec(Spec):
    """How the events in an object or a record are written."""

    format: Literal["json", "csv", "tsv", "text", "parquet", "avro"] = "json"
    csv: CsvSpec = CsvSpec()
    tsv: TsvSpec = TsvSpec()
    pattern: str | None = None
    compression: Compression = "auto"
    max_event_bytes: Bytes = 16 << 20

    @model_validator(mode="after")
    def _pattern_for_text(self) -> Self:
        if (self.format == "text") != (self.pattern is not None):
            raise ValueError("format: text needs a pattern, and no other format has one")
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groupindex
            except re.error as error:
                raise ValueError(f"the pattern is no regular expression: {error}") from None
            if not groups:
                raise ValueError("name the fields in the pattern, such as (?P<time>\\S+)")
        return self


class FileSourceSpec(PayloadSpec):
    """Objects in a relay's file event log: announced through its queue (`s3_sqs`), or listed by it (`cloud_files`).

    Fields of `partition_columns` are read from parts of the key such as `day=2026-01-31`, and lie below `_partition`.
    """

    kind: Literal["s3_sqs", "cloud_files"]
    relay: Name
    bucket: str
    prefix: str = ""
    glob: Glob | None = None
    partition_columns: tuple[Name, ...] = ()
    max_files_per_batch: int = Field(default=500, ge=1)
    max_bytes_per_batch: Bytes = 256 << 20
    max_object_bytes: Bytes = 512 << 20

    def place(self) -> str:
        """What is read, for people."""
        return f"{self.bucket}/{self.glob or self.prefix}"


class RecordSourceSpec(PayloadSpec):
    """Records of a stream: each is a payload of its own.

    Paths that begin with `_record.` read what the record says of itself (`key`, `headers`, `timestamp`, ...).
    """

    tombstones: Literal["quarantine", "event"] = "quarantine"

    @model_validator(mode="after")
    def _no_header_in_a_record(self) -> Self:
        if self.format == "csv" and self.csv.header:
            raise ValueError("a record has no header line: declare csv with header: false and its columns")
        if self.format == "tsv" and not self.tsv.columns:
            raise ValueError("a record has no #Fields line: declare the columns of tsv")
        if self.format in ("parquet", "avro"):
            raise ValueError(f"{self.format} is a form of objects, not of records")
        return self


class KafkaSecuritySpec(Spec):
    """How the brokers are reached. Secrets are references; stores are files on driver and workers.

    A `truststore` holds the authorities that brokers are known by, those of the JVM where it is left out. A `keystore`
    holds the certificate and the key that brokers know this client by. As PEM both are plain files, a key first.
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
    def _complete(self) -> Self:
        with_login = self.protocol.startswith("SASL")
        if with_login != (self.mechanism is not None and self.username is not None and self.password is not None):
            raise ValueError("SASL needs mechanism, username and password; SSL alone has none of them")
        if self.protocol == "SASL_PLAINTEXT" and (self.truststore or self.keystore):
            raise ValueError("SASL_PLAINTEXT uses no truststore and no keystore; with TLS the protocol is SASL_SSL")
        for store in ("truststore", "keystore"):
            place, kind, secret = (getattr(self, f"{store}{part}") for part in ("", "_type", "_password"))
            if secret is not None and (place is None or kind == "PEM"):
                raise ValueError(f"{store}_password opens a {store} of type PKCS12 or JKS; a PEM file has none")
        if self.keystore is not None and self.keystore_type != "PEM" and self.keystore_password is None:
            raise ValueError(f"a keystore of type {self.keystore_type} needs keystore_password")
        if self.key_password is not None and self.keystore is None:
            raise ValueError("key_password opens the key in a keystore: declare keystore")
        return self


class KafkaSourceSpec(RecordSourceSpec):
    """Topics of a Kafka cluster, read to what is committed."""

    kind: Literal["kafka"]
    bootstrap_servers: TextOrReference
    topics: Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    max_records_per_batch: int = Field(default=500_000, ge=1)
    allow_data_loss: bool = Field(default=False, description="go on behind records that expired unread")
    security: KafkaSecuritySpec | None = None

    @model_validator(mode="after")
    def _topics_are_names(self) -> Self:
        for topic in self.topics:
            if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic):
                raise ValueError(f"{topic!r} is no name of a topic")
        if len(set(self.topics)) < len(self.topics):
            raise ValueError("a topic is named twice")
        return self

    def place(self) -> str:
        """What is read, for people."""
        return ", ".join(self.topics)


class KinesisSourceSpec(RecordSourceSpec):
    """The shards of a Kinesis stream, reached as the environment's `messaging` is."""

    kind: Literal["kinesis"]
    stream: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    initial_position: Literal["trim_horizon", "latest"] = "trim_horizon"
    max_records_per_batch: int = Field(default=500_000, ge=1)
    max_bytes_per_batch: Bytes = 256 << 20
    allow_data_loss: bool = Field(default=False, description="go on behind records that expired unread")
    consumer_mode: Literal["polling", "fan_out"] = Field(
        default="polling", description="fan_out: records are pushed to a registered consumer of this pipeline's own"
    )
    consumer_name: str | None = Field(
        default=None,
        pattern=r"^[a-zA-Z0-9_.-]{1,128}$",
        description="of this pipeline alone; deltaworks-PIPELINE unless given",
    )

    def place(self) -> str:
        """What is read, for people."""
        return self.stream

    def name_of_consumer(self, pipeline: str) -> str:
        """What the pipeline's own consumer of the stream is called."""
        return self.consumer_name or f"deltaworks-{pipeline}"


class DeltaSourceSpec(Spec):
    """A Delta table: one of a pipeline of this project, or any by its address.

    Rows become events, with their columns as fields; `_change_type`, `_commit_version` and `_commit_timestamp` beside
    them where the change data feed is read.
    """

    kind: Literal["delta"]
    pipeline: Name | None = None
    table: Name | None = None
    uri: str | None = None
    starting_version: int | None = Field(default=None, ge=0)
    starting_timestamp: str | None = None
    skip_change_commits: bool = False
    change_feed: bool = False
    max_files_per_batch: int = Field(default=500, ge=1)
    max_bytes_per_batch: Bytes = 256 << 20
    max_event_bytes: Bytes = 16 << 20
    format: Literal["json"] = "json"

    @model_validator(mode="after")
    def _one_table(self) -> Self:
        named = self.pipeline is not None and self.table is not None
        if named == (self.uri is not None) or (self.pipeline is None) != (self.table is None):
            raise ValueError("give either pipeline and table, or uri")
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise ValueError("give either starting_version or starting_timestamp")
        if self.change_feed and self.skip_change_commits:
            raise ValueError("the change data feed has every change: skip_change_commits says nothing there")
        return self

    def place(self) -> str:
        """What is read, for people."""
        return self.uri or f"{self.pipeline}/{self.table}"


SourceSpec = Annotated[
    FileSourceSpec | KafkaSourceSpec | KinesisSourceSpec | DeltaSourceSpec, Field(discriminator="kind")
]


def partition_columns_of(source: SourceSpec) -> tuple[str, ...]:
    """The fields that are read from the keys of objects; none for a source without objects."""
    return source.partition_columns if isinstance(source, FileSourceSpec) else ()


def objects_of(source: SourceSpec, *, pipeline: str, wanted: str) -> FileSourceSpec:
    """The source as one of objects, for what reads them again.

    Raises:
        ContractError: SOURCE_HAS_NO_OBJECTS; `wanted` says what cannot be done.
    """
    if isinstance(source, FileSourceSpec):
        return source
    raise ContractError(
        "SOURCE_HAS_NO_OBJECTS",
        f"{pipeline!r} reads {source.kind} ({source.place()}), which keeps no objects: {wanted}.",
        hint="What has landed is in the tables; rows kept whole in quarantine can be replayed.",
    )
