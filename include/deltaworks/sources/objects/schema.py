"""The two tables of a relay: the file event log and the messages it could not use."""

from __future__ import annotations

from collections.abc import Mapping

from deltaworks.control.paths import relay_file_events, relay_message_quarantine
from deltaworks.tables.arrow_types import arrow_schema

#: `seq` grows by one from 1 without gaps. `event_time` is the store's; `batch` is the relay's append number.
FILE_EVENT_COLUMNS: Mapping[str, str] = {
    "seq": "long",
    "bucket": "string",
    "key": "string",
    "size": "long",
    "etag": "string",
    "version_id": "string",
    "event_time": "timestamp",
    "event_name": "string",
    "sequencer": "string",
    "message_id": "string",
    "origin": "string",
    "received_at": "timestamp",
    "batch": "long",
}
MESSAGE_QUARANTINE_COLUMNS: Mapping[str, str] = {
    "message_id": "string",
    "body": "string",
    "reason": "string",
    "received_at": "timestamp",
    "batch": "long",
}
FILE_EVENT_SCHEMA = arrow_schema(FILE_EVENT_COLUMNS)
MESSAGE_QUARANTINE_SCHEMA = arrow_schema(MESSAGE_QUARANTINE_COLUMNS)


def file_events_key(relay: str) -> str:
    """Where the relay's file event log lies in the lake."""
    return relay_file_events(relay)


def message_quarantine_key(relay: str) -> str:
    """Where the messages lie that the relay could not use."""
    return relay_message_quarantine(relay)
