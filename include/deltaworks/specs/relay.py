"""A relay: the one reader of a notification queue, or of a bucket's listing, and the one writer of a file event log."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from deltaworks.specs.base import Name, Spec, TextOrReference
from deltaworks.specs.globs import Glob

#: What a key that is written again means. `ignore`: its first content is the file. `latest`: each new content is a
#: file, read if it is still there. `every_version`: each version is a file, read as it was.
Overwrites = Literal["ignore", "latest", "every_version"]


class ListingSpec(Spec):
    """How a relay looks at its buckets itself: for objects no message came about, or that were there before."""

    prefix: str = ""
    glob: Glob | None = None
    include_existing: bool = Field(
        default=True, description="false: objects older than the relay's first start are not files"
    )
    backfill_interval_hours: float = Field(default=24.0, gt=0)
    grace_minutes: float = Field(default=15.0, ge=0, description="how long a message may take before it counts as lost")


class RelaySpec(Spec):
    """`include/relays/<name>.yaml`."""

    relay: Name
    description: str = ""
    owner: str = "data-platform"
    queue_url: TextOrReference | None = None
    buckets: tuple[str, ...] = Field(min_length=1)
    overwrites: Overwrites = "latest"
    listing: ListingSpec | None = None
    append_seconds: float = Field(default=2.0, gt=0, description="longest wait before what was received is appended")
    max_events_per_append: int = Field(default=1000, ge=1)
    receive_threads: int = Field(default=2, ge=1, le=32)
    max_in_flight: int = Field(default=3000, ge=10, le=100_000, description="messages received and not yet deleted")
    visibility_seconds: int | None = Field(
        default=None, ge=1, le=43_200, description="instead of the queue's own visibility timeout"
    )
    max_run_seconds: int = Field(default=14_400, ge=10)
    lease_ttl_seconds: int = Field(default=30, ge=3)

    @model_validator(mode="after")
    def _fed(self) -> Self:
        if self.queue_url is None and self.listing is None:
            raise ValueError("give a queue_url, a listing, or both")
        return self
