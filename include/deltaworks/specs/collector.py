"""Spec of a collector: its HTTP endpoint, its spool on disk, and the sinks it delivers to."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Bytes, Name, Problem, Reference, Spec, TextOrReference, raise_problems, resolve_text

#: When a request is answered with 200: `spool` after its events are on disk, `sink` after the sink accepted them.
Ack = Literal["spool", "sink"]
#: Maximum number of sources: the spool stores a source's number in one byte.
MAX_SOURCES = 255
#: The CORS origin that allows scripts of any site.
ANY_ORIGIN = "*"
_DIGEST = re.compile(r"^[0-9a-f]{64}$")


def _check_digest(value: Reference | str) -> Reference | str:
    if isinstance(value, Reference):
        return value
    value = value.lower()
    if not _DIGEST.match(value):
        raise ValueError(
            "write the SHA-256 of the key as 64 hexadecimal digits, such as `printf %s KEY | sha256sum` prints; "
            "the key itself stays with the client"
        )
    return value


def _check_origin(value: str) -> str:
    parts = urlsplit(value)
    if value == ANY_ORIGIN:
        return value
    if parts.scheme not in ("http", "https") or not parts.netloc or value != f"{parts.scheme}://{parts.netloc}":
        raise ValueError("write an origin as browsers send it, scheme and host alone, such as https://play.example.org")
    return value.lower()


class ListenSpec(Spec):
    """The collector's address and ports, and the number of trusted proxies that requests pass."""

    host: str = "0.0.0.0"
    port: int = Field(default=8090, ge=0, le=65_535, description="0 selects a free port")
    metrics_port: int = Field(
        default=8091, ge=0, le=65_535, description=("port of GET /metrics; 0 selects a free port")
    )
    public_host: str | None = Field(
        default=None, description="host and port that clients reach, for the settings of analytics.js; none by default"
    )
    trusted_hops: int = Field(
        default=0, ge=0, le=10, description=("number of proxies whose X-Forwarded-For is trusted")
    )


class SpoolSpec(Spec):
    """Files on disk that hold events until their sink accepted them."""

    max_bytes: Bytes = Field(default=10 << 30, description="size from which requests are rejected")
    min_free_percent: float = Field(
        default=5, ge=0, lt=100, description=("free disk space below which requests are rejected")
    )
    segment_bytes: Bytes = Field(default=64 << 20, description="size after which a file is closed")
    segment_seconds: float = Field(default=60, gt=0, description="age after which a file is closed")
    ack: Ack = "spool"


class LimitsSpec(Spec):
    """Limits of single requests and of all requests together."""

    max_body_bytes: Bytes = Field(
        default=4 << 20, ge=4 << 20, description=("size of a body, compressed and decompressed")
    )
    body_seconds: float = Field(default=10, gt=0, description="time within which a body must arrive")
    in_flight_bytes: Bytes = Field(
        default=256 << 20, description=("total size of bodies that are being read or written")
    )
    connections: int = Field(default=10_000, ge=1)
    drain_seconds: float = Field(default=10, ge=0, description="time after SIGTERM for load balancers to drain")
    flush_seconds: float = Field(default=20, ge=0, description="time after that to deliver the spool")


class KeySpec(Spec):
    """An API key of a source: its SHA-256 digest and its last valid day (UTC)."""

    sha256: Annotated[TextOrReference, AfterValidator(_check_digest)]
    until: date | None = None

    def digest(self) -> str:
        """Returns the digest, of a reference its current value.

        Raises:
            ConfigError: REFERENCE_UNRESOLVED; SPEC_INVALID for a value that is no digest.
        """
        value = resolve_text(self.sha256).strip().lower()
        if not _DIGEST.match(value):
            raise ConfigError(
                "SPEC_INVALID",
                f"{self.sha256} is a reference to a write key's digest, and its value is no SHA-256.",
                hint="Set it to 64 hexadecimal digits, such as `printf %s KEY | sha256sum` prints.",
            )
        return value

    def is_valid_at(self, epoch_seconds: float) -> bool:
        """Returns whether the key is valid at a time, in epoch seconds."""
        if self.until is None:
            return True
        end = datetime.combine(self.until, time.max, tzinfo=UTC)
        return epoch_seconds <= end.timestamp()


class RateSpec(Spec):
    """Rate limit of a key: events per second, and burst."""

    events_per_second: float = Field(gt=0)
    burst: int = Field(ge=1)


class LandingSinkSpec(Spec):
    """Sink that lands objects of gzipped JSON lines in a bucket, with Firehose's key layout."""

    kind: Literal["landing"]
    bucket: str | None = Field(default=None, description="by default that of the pipeline's source")
    prefix: str = ""
    close_bytes: Bytes = Field(default=8 << 20, description="JSON size after which an object is closed")
    close_seconds: float = Field(default=60, gt=0, le=900)


class KinesisSinkSpec(Spec):
    """Sink that writes aggregated records to a Kinesis stream."""

    kind: Literal["kinesis"]
    stream: str | None = Field(default=None, description="by default that of the pipeline's source")
    record_bytes: Bytes = Field(default=256 << 10, le=10 << 20)


class KafkaSinkSpec(Spec):
    """Sink that writes records to a Kafka topic."""

    kind: Literal["kafka"]
    bootstrap_servers: TextOrReference
    topic: str = Field(min_length=1)


SinkSpec = Annotated[LandingSinkSpec | KinesisSinkSpec | KafkaSinkSpec, Field(discriminator="kind")]


class CollectorSourceSpec(Spec):
    """A sender of events: its keys, its pipeline and its sink."""

    pipeline: Name
    keys: tuple[KeySpec, ...] = Field(min_length=1)
    origins: tuple[Annotated[str, AfterValidator(_check_origin)], ...] = Field(
        default=(), description='web origins that may send: none by default, all with "*"'
    )
    rate: RateSpec | None = None
    wrap: Literal["none", "api_gateway"] = "none"
    stamp_time: bool = Field(
        default=True,
        description=(
            "with `wrap: api_gateway`: set `eventTime` to the arrival time; false if events contain it, as in a replay"
        ),
    )
    sink: SinkSpec


class CollectorSpec(Spec):
    """A collector, which receives events by HTTP. Declared in `include/collectors/<name>.yaml`."""

    collector: Name
    description: str = ""
    owner: str = "data-platform"
    listen: ListenSpec = Field(default_factory=ListenSpec)
    spool: SpoolSpec = Field(default_factory=SpoolSpec)
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    skew_minutes: float = Field(default=5, gt=0, description="clock skew from which a client's times are corrected")
    late_hours: float = Field(default=48, gt=0, description="age from which an event is flagged `late`")
    sources: dict[Name, CollectorSourceSpec] = Field(min_length=1, max_length=MAX_SOURCES)

    @model_validator(mode="after")
    def _check_unique_keys(self) -> Self:
        owners: dict[str, str] = {}
        problems: list[Problem] = []
        for name, source in self.sources.items():
            for number, key in enumerate(source.keys):
                owner = owners.setdefault(str(key.sha256), name)
                if owner != name or key.sha256 in {other.sha256 for other in source.keys[:number]}:
                    key_path = ("sources", name, "keys", number, "sha256")
                    problems.append(
                        (key_path, (f"the source {owner!r} already has this key; a key identifies one source"))
                    )
        raise_problems(problems)
        return self
