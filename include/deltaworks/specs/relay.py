"""Spec of a relay, which alone reads a notification queue or lists buckets, and alone writes a file event log."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from deltaworks.specs.base import Name, Spec, TextOrReference, raise_problems
from deltaworks.specs.schedules import Schedule
from deltaworks.specs.sources import Glob, key_selection_problems
from deltaworks.specs.storage import StorageSpec

#: What an overwritten object means. `ignore`: only its first content counts. `latest`: each new content is a file, read
#: if it still exists. `every_version`: each version is a file.
Overwrites = Literal["ignore", "latest", "every_version"]


class ListingSpec(Spec):
    """Bucket listing. It finds objects that existed before the relay, and objects without a notification."""

    prefix: str = ""
    glob: Glob | None = None
    include_existing: bool = Field(default=True, description="false: ignore objects older than the relay's first start")
    backfill_interval_hours: float = Field(default=24.0, gt=0)
    grace_minutes: float = Field(default=15.0, ge=0, description="delay after which a notification counts as lost")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        raise_problems([((key,), text) for key, text in key_selection_problems(self.prefix, self.glob)])
        return self


class CleanSpec(Spec):
    """Deletes or archives landed objects after all pipelines that read them have committed them."""

    mode: Literal["delete", "archive"]
    after_days: float = Field(default=30, ge=1, description="days since the object was logged")
    archive_to: str | None = Field(default=None, description="s3://bucket/prefix or file:///folder, for mode: archive")
    schedule: Schedule = "30 3 * * *"
    dry_run: bool = Field(default=True, description="only counts")

    @model_validator(mode="after")
    def _check_archive_target(self) -> Self:
        if (self.mode == "archive") != (self.archive_to is not None):
            raise ValueError("mode: archive needs archive_to, and mode: delete has none")
        return self

    def archive_storage(self, landing: StorageSpec) -> StorageSpec | None:
        """Returns the archive storage, with the credentials of the landing buckets; None for `mode: delete`."""
        if self.archive_to is None:
            return None
        return StorageSpec.model_validate(landing.model_dump() | {"root": self.archive_to})


class RelaySpec(Spec):
    """A relay, which records landed objects in a file event log. Declared in `include/relays/<name>.yaml`."""

    relay: Name
    description: str = ""
    owner: str = "data-platform"
    queue_url: TextOrReference | None = None
    buckets: tuple[str, ...] = Field(min_length=1)
    overwrites: Overwrites = "latest"
    listing: ListingSpec | None = None
    clean: CleanSpec | None = None
    message_retention_days: int | None = Field(
        default=30, ge=1, description="days after which unusable messages are deleted; null: never"
    )
    append_seconds: float = Field(default=2.0, gt=0, description="maximum delay before received events are appended")
    max_events_per_append: int = Field(default=1000, ge=1)
    receive_threads: int = Field(default=2, ge=1, le=32)
    max_in_flight: int = Field(default=3000, ge=10, le=100_000, description="messages received and not yet deleted")
    visibility_seconds: int | None = Field(
        default=None, ge=1, le=43_200, description="by default the queue's visibility timeout"
    )
    max_run_seconds: int = Field(default=14_400, ge=10)
    lease_ttl_seconds: int = Field(default=30, ge=3)

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if self.queue_url is None and self.listing is None:
            raise ValueError("give a queue_url, a listing, or both")
        problems = key_selection_problems("", None, buckets=self.buckets)
        raise_problems([(("buckets",), text) for _, text in problems])
        return self

    @model_validator(mode="after")
    def _check_archive(self) -> Self:
        archive = self.clean.archive_to if self.clean is not None else None
        if archive is not None and archive.removeprefix("s3://").split("/")[0] in self.buckets:
            raise ValueError(
                "archive to a bucket that is not in `buckets`: it would send notifications for archived objects"
            )
        return self
