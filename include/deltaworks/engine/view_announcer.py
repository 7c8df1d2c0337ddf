"""Publishes the results of views that declare `announce` to an SNS topic whenever they change.

A message contains the complete result, so a subscriber that missed one needs only the next. It has a number that
increases per view. Delivery is at least once: a crash after publishing and before recording publishes the message again
with the same number. FIFO topics (`.fifo`) drop such duplicates.

A failing view or topic does not end the stream: an alert is raised, and the next check retries.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.foreign_errors import data_file_error
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ContractError, DeltaworksError, TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import ViewSpec
from deltaworks.specs.pipeline import PipelineSpec

if TYPE_CHECKING:
    from deltaworks.control.locks.lease import Lease

log = logging.getLogger(__name__)
#: Maximum size of an SNS message, less room for attributes.
MAX_MESSAGE_BYTES: Final = 255 * 1024
#: Interval of raising the alert again while a failure lasts. The alert module decides when to notify.
_ALERT_SECONDS = 60.0
_CLOSE_SECONDS = 10.0
_ALERT_CAUSE = "VIEW_NOT_ANNOUNCED"
Publish = Callable[[str, str, Mapping[str, str], str], None]


@contextmanager
def view_announcements(catalog: Catalog, spec: PipelineSpec, lease: Lease) -> Iterator[None]:
    """Publishes changed view results in a separate thread while the block runs."""
    views = [view for view in spec.views if view.announce is not None]
    thread = AnnouncerThread(ViewAnnouncer(catalog, spec), views, has_lease=lambda: not lease.is_lost)
    thread.start()
    try:
        yield
    finally:
        thread.close()


class ViewAnnouncer:
    """Publishes the results of one pipeline's views. Used by one thread.

    Args:
        publish: sends a message; by default to the view's channel. Tests replace it.
    """

    def __init__(self, catalog: Catalog, spec: PipelineSpec, *, publish: Publish | None = None) -> None:
        # Views read tables of their own pipeline only.
        self._catalog = dataclasses.replace(catalog, pipelines={spec.pipeline: spec})
        self._pipeline = spec.pipeline
        self._objects: ObjectStore = open_objects(catalog.environment.lake)
        self._publish = publish or _SnsPublisher(catalog)

    def announce(self, view: ViewSpec) -> int | None:
        """Publishes the view's result if it changed since the last message. Returns the message number.

        Returns None if nothing changed, or if a table that the view reads does not exist yet.

        Raises:
            ContractError: VIEW_UNREADABLE, ANNOUNCEMENT_TOO_LARGE.
            TransientError: ANNOUNCEMENT_REFUSED, or a storage error.
        """
        if view.announce is None:
            return None
        rows = self._query_view(view)
        if rows is None:
            return None
        digest = rows_digest(rows)
        key = paths.announced_view(self._pipeline, view.name)
        number, published = self._last_published(key)
        if published == digest:
            return None
        number += 1
        message = {"pipeline": self._pipeline, "view": view.name, "number": number, "at": iso_now(), "rows": rows}
        body = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        size = len(body.encode())
        if size > MAX_MESSAGE_BYTES:
            raise ContractError(
                "ANNOUNCEMENT_TOO_LARGE",
                f"The result of view {self._name(view)} has {size:,} bytes in {len(rows):,} rows; SNS accepts "
                f"{MAX_MESSAGE_BYTES:,} bytes.",
            )
        self._publish(view.announce.channel, body, {"pipeline": self._pipeline, "view": view.name}, f"{number}")
        self._objects.put(key, json.dumps({"number": number, "digest": digest, "at": message["at"]}).encode())
        return number

    def raise_failure_alert(self, view: ViewSpec, error: Exception) -> None:
        """Raises the alert that a view's result cannot be published. Never raises an exception."""
        from deltaworks.alerts.raising import raise_alert

        self._try_alert(
            lambda: raise_alert(self._objects, cause=_ALERT_CAUSE, subject=self._name(view), summary=str(error))
        )

    def resolve_failure_alert(self, view: ViewSpec) -> None:
        """Resolves the alert of `raise_failure_alert`. Never raises an exception."""
        from deltaworks.alerts.raising import resolve_alert

        self._try_alert(lambda: resolve_alert(self._objects, cause=_ALERT_CAUSE, subject=self._name(view)))

    def _try_alert(self, action: Callable[[], object]) -> None:
        try:
            action()
        except DeltaworksError as error:
            log.warning("pipeline=%s alert could not be stored: %s", self._pipeline, error)

    def _name(self, view: ViewSpec) -> str:
        return f"{self._pipeline}.{view.name}"

    def _query_view(self, view: ViewSpec) -> list[dict[str, Any]] | None:
        import duckdb

        from deltaworks.tables.query import connect

        connection, names = connect(self._catalog, statement=f"SELECT * FROM {self._name(view)}")
        with connection:
            if self._name(view) not in names:
                return None
            try:
                result = connection.execute(f'SELECT * FROM "{self._pipeline}"."{view.name}"')
                columns = [column[0] for column in result.description or ()]
                return [dict(zip(columns, map(to_json_value, row), strict=True)) for row in result.fetchall()]
            except duckdb.Error as error:
                raise data_file_error(error) or ContractError(
                    "VIEW_UNREADABLE",
                    f"View {self._name(view)} cannot be read: {' '.join(str(error).split())[:500]}.",
                    hint=f"Run it yourself: deltaworks sql 'SELECT * FROM {self._name(view)}'.",
                ) from error

    def _last_published(self, key: str) -> tuple[int, str]:
        """Returns number and digest of the last message. An unreadable record is treated as missing."""
        stored = self._objects.get(key)
        try:
            record = json.loads(stored.data) if stored is not None else {}
            return int(record.get("number", 0)), str(record.get("digest", ""))
        except (ValueError, TypeError, AttributeError):
            return 0, ""


class AnnouncerThread(threading.Thread):
    """Thread that checks each view at its interval, counted from the end of the previous check.

    Args:
        has_lease: whether this process still holds the pipeline's lease; without it nothing is published.
    """

    def __init__(self, announcer: ViewAnnouncer, views: Sequence[ViewSpec], *, has_lease: Callable[[], bool]) -> None:
        super().__init__(name="announced views", daemon=True)
        self._announcer = announcer
        self._due_at = dict.fromkeys((view.name for view in views), 0.0)
        self._views = views
        self._has_lease = has_lease
        self._closing = threading.Event()
        self._alerted_at: dict[str, float] = {}
        self._views_without_alert: set[str] = set()

    def run(self) -> None:
        while not self._closing.wait(max(0.0, min(self._due_at.values()) - time.monotonic())):
            for view in self._views:
                if time.monotonic() >= self._due_at[view.name]:
                    if not self._has_lease():
                        return
                    self._announce(view)
                    self._due_at[view.name] = time.monotonic() + (view.announce.every_seconds if view.announce else 0)

    def close(self) -> None:
        """Stops the thread, and waits some seconds for a running check."""
        self._closing.set()
        self.join(_CLOSE_SECONDS)

    def _announce(self, view: ViewSpec) -> None:
        try:
            self._announcer.announce(view)
        except Exception as error:  # Any failure: the stream continues, and the next check retries.
            log.warning("view=%s could not be announced: %s", view.name, error)
            self._views_without_alert.discard(view.name)
            if time.monotonic() - self._alerted_at.get(view.name, -math.inf) >= _ALERT_SECONDS:
                self._announcer.raise_failure_alert(view, error)
                self._alerted_at[view.name] = time.monotonic()
            return
        if view.name not in self._views_without_alert:
            # An earlier run may have raised the alert.
            self._announcer.resolve_failure_alert(view)
            self._views_without_alert.add(view.name)
            self._alerted_at.pop(view.name, None)


class _SnsPublisher:
    """Publishes messages to the SNS topics of the environment's channels."""

    def __init__(self, catalog: Catalog) -> None:
        self._environment = catalog.environment
        self._client: Any = None

    def __call__(self, channel: str, body: str, attributes: Mapping[str, str], number: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        from deltaworks.alerts.channels.senders import SnsMessage, publish, sns_client
        from deltaworks.specs.alert_channels import SnsChannelSpec
        from deltaworks.specs.base import resolve_text

        specs = {spec.name: spec for spec in self._environment.alerts.channels if isinstance(spec, SnsChannelSpec)}
        name = ".".join(attributes.values())
        try:
            topic = resolve_text(specs[channel].topic)
            self._client = self._client or sns_client(self._environment.messaging)
            message = SnsMessage(topic=topic, subject=f"{name} has changed", body=body, attributes=dict(attributes))
            if topic.endswith(".fifo"):
                message = dataclasses.replace(message, group=name, deduplication_id=f"{name}.{number}")
            publish(self._client, message)
        except (BotoCoreError, ClientError) as error:
            raise TransientError(
                "ANNOUNCEMENT_REFUSED", f"Channel {channel!r} rejected the result of view {name}: {error}."
            ) from error


def to_json_value(value: Any) -> Any:
    """Converts a value to JSON: decimals to strings, which are exact; timestamps to ISO 8601; NaN and infinities to
    null.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): to_json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(part) for part in value]
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def rows_digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """Computes a digest of a result that does not depend on the row order, which is undefined in SQL without
    ORDER BY."""
    texts = sorted(json.dumps(row, sort_keys=True) for row in rows)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
