"""Fuzzes messages about objects, up to the log: S3 notifications, bare or in an SNS envelope, and EventBridge events.

Also opens the object that a message names on local storage, which must be below the landing folder, and checks the HTTP
request for it.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from hypothesis import strategies as st

from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, QuarantinedMessage, ReceivedEvent
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.relay.messages import FileEvent, ParsedMessage, parse_message
from deltaworks.testing import local_lake, local_storage
from tests.fuzz.cases import Case
from tests.fuzz.mutations import ODD_VALUES
from tests.fuzz.targets import Inputs
from tests.fuzz.text_inputs import TEXTS, VALUES

BUCKETS = ("landing",)
_AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_ODD = VALUES | st.sampled_from(ODD_VALUES)
KEYS = st.one_of(
    st.text("ab/1 +%", min_size=1, max_size=8),
    st.sampled_from(
        [
            "a/../../outside/secret",
            "../outside/secret",
            "..",
            "a/",
            "/outside/secret",
            "a\0b",
            "a\r\nb",
            "é",
            "x" * 1_100,
            ".",
            "%ff",
        ]
    ),
)
ETAGS = st.sampled_from(["d41d8cd9", '"d41d8cd9"', "", "a\r\nX-Header: b", "é", "\0", "x" * 10_000]) | TEXTS
_TIMES = st.sampled_from(
    [
        "2026-01-01T00:00:00.000Z",
        "2026-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2026",
        "x",
    ]
)


def _with_odd(right: Mapping[str, Any]) -> Any:
    """Replaces or drops some of the values at random."""
    return st.fixed_dictionaries(
        {}, optional={name: strategy | strategy | strategy | _ODD for name, strategy in right.items()}
    ) | st.fixed_dictionaries(dict(right))


_RECORDS = _with_odd(
    {
        "eventName": st.sampled_from(
            ["ObjectCreated:Put", "s3:ObjectCreated:Copy", "ObjectRemoved:Delete", "ObjectCreated:"]
        ),
        "eventTime": _TIMES,
        "s3": _with_odd(
            {
                "bucket": _with_odd({"name": st.sampled_from(["landing", "landing", "other"])}),
                "object": _with_odd(
                    {
                        "key": KEYS.map(quote_plus) | KEYS,
                        "size": st.integers(0, 10) | st.sampled_from([2**63 - 1, 2**63, -1, True, 1.0]),
                        "eTag": ETAGS,
                        "versionId": TEXTS,
                        "sequencer": TEXTS,
                    }
                ),
            }
        ),
    }
)
NOTIFICATIONS = _with_odd({"Records": st.lists(_RECORDS | _ODD, max_size=4)}) | st.just({"Event": "s3:TestEvent"})
BRIDGED = _with_odd(
    {
        "source": st.just("aws.s3"),
        "detail-type": st.sampled_from(["Object Created", "Object Deleted"]),
        "time": _TIMES,
        "detail": _with_odd(
            {
                "bucket": _with_odd({"name": st.just("landing")}),
                "reason": st.just("PutObject") | _ODD,
                "object": _with_odd(
                    {"key": KEYS, "size": st.integers(0, 10), "etag": ETAGS, "version-id": TEXTS, "sequencer": TEXTS}
                ),
            }
        ),
    }
)


def _text(value: Any) -> str:
    return json.dumps(value)


def _enveloped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _with_odd(
        {
            "Type": st.sampled_from(["Notification", "SubscriptionConfirmation", "Notification"]),
            "TopicArn": st.just("arn:aws:sns:us-east-1:1:t"),
            "Message": inner.map(_text),
        }
    )


_INPUTS = {
    "s3": NOTIFICATIONS,
    "sns": _enveloped(NOTIFICATIONS),
    "eventbridge": BRIDGED | _enveloped(BRIDGED),
}


@dataclass(frozen=True, slots=True)
class Relayed:
    """Result of one message: its parsed content, its log rows, and problems with opening its objects."""

    parsed: ParsedMessage
    logged: int
    notes: tuple[str, ...] = ()

    def differs(self, other: Relayed) -> bool:
        return self != other


@dataclass(frozen=True, slots=True)
class _Relay:
    writer: FileEventLogWriter
    opener: FileOpener
    folder: tempfile.TemporaryDirectory[str]


@cache
def _relay() -> _Relay:
    """A relay's log and a landing folder next to another file, cached for the process."""
    folder = tempfile.TemporaryDirectory(prefix="fuzz-relay-")
    root = Path(folder.name)
    (root / "landing").mkdir()
    (root / "outside").mkdir()
    (root / "outside" / "secret").write_text("secret")
    writer = FileEventLogWriter(local_lake(root / "lake"), "landing", epoch=1)
    opener = FileOpener(local_storage(root / "landing"), compression="none", max_object_bytes=1 << 20)
    return _Relay(writer, opener, folder)


def _of_opening(event: FileEvent) -> list[str]:
    """Returns the problem with opening a file event's object; a missing object is fine."""
    payload = _relay().opener(FileReference(1, event.key, ""))
    escaped = [f"a key leads out of the landing folder: {event.key!r}"] if payload.data == b"secret" else []
    carried = {"etag": event.etag, "version": event.version_id or ""}
    odd = [f"the {name} breaks a request: {text!r}" for name, text in carried.items() if set("\r\n\0") & set(text)]
    return escaped + odd


@dataclass(frozen=True, slots=True)
class MessageTarget:
    """Reads, logs and opens bodies of queue messages as the relay and a task do."""

    name: str = "messages"
    kind: str = "json"

    def variants(self) -> Sequence[str]:
        return list(_INPUTS)

    def inputs(self, variant: str) -> Inputs:
        return _INPUTS[variant].map(lambda message: json.dumps(message).encode())

    def observe(self, case: Case) -> Relayed:
        body = case.data.decode("utf-8", "replace")
        parsed = parse_message(body, buckets=BUCKETS)
        received = [ReceivedEvent(event, "m", _AT) for event in parsed.events]
        kept = [QuarantinedMessage("m", body, parsed.reason, _AT)] if parsed.problems else []
        pending = _relay().writer.prepare(received, kept)
        logged = pending.events.num_rows + pending.duplicates
        notes = [note for event in parsed.events for note in _of_opening(event)]
        if logged < len(parsed.events) or pending.messages.num_rows < len(kept):
            notes.append("what was read is not in the log's rows")
        return Relayed(parsed, logged, tuple(notes))

    def problems(self, case: Case, observed: Relayed) -> Sequence[str]:
        parsed = observed.parsed
        outcomes = len(parsed.events) + len(parsed.ignored) + len(parsed.problems)
        expected = records_of(case.data)
        if not outcomes or (expected is not None and outcomes != expected):
            return [*observed.notes, f"{outcomes} outcomes of {expected} records"]
        return list(observed.notes)

    def counts(self, observed: Relayed) -> tuple[int, int]:
        parsed = observed.parsed
        return len(parsed.events) + len(parsed.ignored) + len(parsed.problems), len(parsed.problems)


def records_of(body: bytes) -> int | None:
    """Returns how many records a message has, each of which must have a result; None if that is uncertain."""
    try:
        content = json.loads(body.decode("utf-8", "replace"))
        if isinstance(content, dict) and "TopicArn" in content and "Message" in content:
            if content.get("Type", "Notification") != "Notification":
                return 1
            content = json.loads(content["Message"])
    except (TypeError, ValueError, RecursionError):
        return 1
    # If JSON parsers disagree on it, the message counts as one problem.
    if re.search(rb"NaN|Infinity|\\+u[dD]|[eE]\+?\d\d\d|\d{19}|[\[{]{99}", body):
        return None
    if not isinstance(content, dict) or content.get("Event") == "s3:TestEvent" or "detail-type" in content:
        return 1
    records = content.get("Records")
    if not isinstance(records, list) or not records:
        return 1
    return len(records)
