"""A relay: the one reader of a notification queue and the one writer of a file event log."""

from __future__ import annotations

from pydantic import Field

from deltaworks.specs.base import Name, Spec, TextOrReference


class RelaySpec(Spec):
    """`include/relays/<name>.yaml`."""

    relay: Name
    description: str = ""
    owner: str = "data-platform"
    queue_url: TextOrReference
    buckets: tuple[str, ...] = Field(min_length=1)
    append_seconds: float = Field(default=2.0, gt=0, description="longest wait before what was received is appended")
    max_events_per_append: int = Field(default=1000, ge=1)
    receive_threads: int = Field(default=2, ge=1, le=32)
    max_run_seconds: int = Field(default=14_400, ge=10)
    lease_ttl_seconds: int = Field(default=30, ge=3)
