"""Publishes the answers of views that declare `announce`, each when it has changed, on a topic of SNS.

A message has the whole answer, so whoever missed one has lost nothing with the next. It has a number that grows by one
with each message of its view. What was published last is on record; it is published first and recorded then, so a
process that dies in between publishes the same answer again under the same number: at least once, and subscribers tell
a repeated message by its number. Topics whose names end with `.fifo` drop it themselves.

A view that fails, and a topic that does not answer, end no stream: an alert is raised, and the next look tries again.
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
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ContractError, DeltaworksError, TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import ViewSpec
from deltaworks.specs.pipeline import PipelineSpec

if TYPE_CHECKING:
    from deltaworks.control.locks.lease import Lease

log = logging.getLogger(__name__)
#: What SNS takes as one message, without what attributes need.
MAX_MESSAGE_BYTES: Final = 255 * 1024
#: How often a failure that lasts is alerted on again: the alert itself tells when people hear of it.
_ALERT_SECONDS = 60.0
_CLOSE_SECONDS = 10.0
_ALERT_CAUSE = "VIEW_NOT_ANNOUNCED"
Publish = Callable[[str, str, Mapping[str, str], str], None]


@contextmanager
def view_announcements(catalog: Catalog, spec: PipelineSpec, lease: Lease) -> Iterator[None]:
    """Publish changed answers of the views that declare it while the block runs, in a thread of its own."""
    views = [view for view in spec.views if view.announce is not None]
    thread = AnnouncerThread(ViewAnnouncer(catalog, spec), views, has_lease=lambda: not lease.is_lost)
    thread.start()
    try:
        yield
    finally:
        thread.close()


class ViewAnnouncer:
    """Publishes the answers of one pipeline's views. Used by one thread.

    Args:
        publish: sends a message, for tests; by default to the channel that the view names.
    """

    def __init__(self, catalog: Catalog, spec: PipelineSpec, *, publish: Publish | None = None) -> None:
        # A view reads tables of its own pipeline alone.
        self._catalog = dataclasses.replace(catalog, pipelines={spec.pipeline: spec})
        self._pipeline = spec.pipeline
        self._objects: ObjectStore = open_objects(catalog.environment.lake)
        self._publish = publish or _SnsPublisher(catalog)

    def announce(self, view: ViewSpec) -> int | None:
        """Publish the view's answer if it is another one than was published last: its number, else None.

        None too while a table that the view reads has not been created.

        Raises:
            ContractError: VIEW_UNREADABLE, ANNOUNCEMENT_TOO_LARGE.
            TransientError: ANNOUNCEMENT_REFUSED, and what the storage raises.
        """
        if view.announce is None:
            return None
        rows = self._query_view(view)
        if rows is None:
            return None
        digest = _rows_digest(rows)
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
                f"The answer of the view {self._name(view)} has {size:,} bytes in {len(rows):,} rows, and SNS takes "
                f"{MAX_MESSAGE_BYTES:,}.",
                hint="Aggregate further, name fewer columns, or LIMIT the rows.",
            )
        self._publish(view.announce.channel, body, {"pipeline": self._pipeline, "view": view.name}, f"{number}")
        self._objects.put(key, json.dumps({"number": number, "digest": digest, "at": message["at"]}).encode())
        return number

    def raise_failure_alert(self, view: ViewSpec, error: Exception) -> None:
        """Raise the alert that a view is not announced. Never raises."""
        from deltaworks.alerts.raising import raise_alert

        self._try_alert(
            lambda: raise_alert(self._objects, cause=_ALERT_CAUSE, subject=self._name(view), summary=str(error))
        )

    def resolve_failure_alert(self, view: ViewSpec) -> None:
        """Resolve that alert. Never raises."""
        from deltaworks.alerts.raising import resolve_alert

        self._try_alert(lambda: resolve_alert(self._objects, cause=_ALERT_CAUSE, subject=self._name(view)))

    def _try_alert(self, action: Callable[[], object]) -> None:
        try:
            action()
        except DeltaworksError as error:
            log.warning("pipeline=%s alert could not be kept: %s", self._pipeline, error)

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
                raise ContractError(
                    "VIEW_UNREADABLE",
                    f"The view {self._name(view)} cannot be read: {' '.join(str(error).split())[:500]}.",
                    hint=f"Ask for it yourself: deltaworks sql 'SELECT * FROM {self._name(view)}'.",
                ) from error

    def _last_published(self, key: str) -> tuple[int, str]:
        """Number and digest of what was published last; a record that cannot be read is none."""
        stored = self._objects.get(key)
        try:
            record = json.loads(stored.data) if stored is not None else {}
            return int(record.get("number", 0)), str(record.get("digest", ""))
        except (ValueError, TypeError, AttributeError):
            return 0, ""


class AnnouncerThread(threading.Thread):
    """Looks at each view every so many seconds, from the end of one look to the next.

    Args:
        is_ours: whether the pipeline is still this process's; nothing is published once it is not.
    """

    def __init__(self, announcer: ViewAnnouncer, views: Sequence[ViewSpec], *, has_lease: Callable[[], bool]) -> None:
        super().__init__(name="announced views", daemon=True)
        self._announcer = announcer
        self._due_at = dict.fromkeys((view.name for view in views), 0.0)
        self._views = views
        self._has_lease = has_lease
        self._closing = threading.Event()
        self._alerted_at: dict[str, float] = {}
        self._healthy: set[str] = set()

    def run(self) -> None:
        while not self._closing.wait(max(0.0, min(self._due_at.values()) - time.monotonic())):
            for view in self._views:
                if time.monotonic() >= self._due_at[view.name]:
                    if not self._has_lease():
                        return
                    self._announce(view)
                    self._due_at[view.name] = time.monotonic() + (view.announce.every_seconds if view.announce else 0)

    def close(self) -> None:
        """End; a look that is under way is waited for, some seconds."""
        self._closing.set()
        self.join(_CLOSE_SECONDS)

    def _announce(self, view: ViewSpec) -> None:
        try:
            self._announcer.announce(view)
        except Exception as error:  # whatever it is: the stream goes on, and the next look tries again
            log.warning("view=%s could not be announced: %s", view.name, error)
            self._healthy.discard(view.name)
            if time.monotonic() - self._alerted_at.get(view.name, -math.inf) >= _ALERT_SECONDS:
                self._announcer.raise_failure_alert(view, error)
                self._alerted_at[view.name] = time.monotonic()
            return
        if view.name not in self._healthy:
            # A run before this one may have raised it, too.
            self._announcer.resolve_failure_alert(view)
            self._healthy.add(view.name)
            self._alerted_at.pop(view.name, None)


class _SnsPublisher:
    """Publishes to the topics of the environment's channels, each by a client of its own."""

    def __init__(self, catalog: Catalog) -> None:
        self._environment = catalog.environment
        self._client: Any = None

    def __call__(self, channel: str, body: str, attributes: Mapping[str, str], number: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        from deltaworks.alerts.channels.sns import SnsMessage, publish, sns_client
        from deltaworks.specs.base import resolve_text
        from deltaworks.specs.environment import SnsChannelSpec

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
                "ANNOUNCEMENT_REFUSED",
                f"The channel {channel!r} did not take the answer of the view {name}: {error}.",
                hint="It is tried again. Check the topic and the keys under `alerts` of the environment.",
            ) from error


def to_json_value(value: Any) -> Any:
    """A value as JSON has it: decimals as texts, so that none is rounded; instants in ISO 8601; what is no number,
    null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): to_json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(part) for part in value]
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _rows_digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of the rows in whatever order: SQL without ORDER BY has none."""
    texts = sorted(json.dumps(row, sort_keys=True) for row in rows)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
