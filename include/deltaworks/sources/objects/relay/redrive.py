"""Returns messages to a relay's queue: dead letters, and quarantined messages that can be parsed now.

Nothing is written to the log: the relay receives the messages and skips events that its log has. So a repeated or
interrupted redrive neither loses nor duplicates a file event.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from deltaworks.sources.objects.file_event_log import FileEventLog, file_event_identity, message_quarantine_key
from deltaworks.sources.objects.relay.messages import parse_message
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.specs.relay import RelaySpec
from deltaworks.tables.lake import Lake

_EMPTY_RECEIVES = 2


@dataclass(slots=True, kw_only=True)
class RedriveResult:
    """The result of a redrive. In a dry run, nothing was moved or sent.

    Attributes:
        dead_letters: approximate number of messages in the dead-letter queue.
        dead_letters_moved: dead letters that were returned to the queue.
        usable: quarantined messages that can be parsed now and contain files that the log lacks.
        sent: usable messages that were returned to the queue.
        already_logged: quarantined messages whose files are all in the log.
        reasons: why the other messages stay quarantined, with their number.
    """

    dry_run: bool
    dead_letters: int | None = None
    dead_letters_moved: int = 0
    quarantined: int = 0
    usable: int = 0
    sent: int = 0
    already_logged: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def redrive(
    spec: RelaySpec, lake: Lake, queue: NotificationQueue, *, dry_run: bool = True, limit: int = 10_000
) -> RedriveResult:
    """Returns usable messages to the queue, at most `limit` of each kind. Safe while the relay runs.

    Raises:
        ConfigError: QUEUE_REFUSED.
    """
    result = RedriveResult(dry_run=dry_run)
    dead_letter_queue = queue.dead_letter_queue()
    if dead_letter_queue is not None:
        result.dead_letters = dead_letter_queue.approximate_backlog()
        if not dry_run:
            result.dead_letters_moved = _move_dead_letters(dead_letter_queue, queue, limit)
    usable = _usable_bodies(spec, lake, result)[:limit]
    if not dry_run:
        result.sent = len(usable) - len(queue.send(usable))
    return result


def _move_dead_letters(dead_letter_queue: NotificationQueue, queue: NotificationQueue, limit: int) -> int:
    """Moves messages from the dead-letter queue to the queue. A message is deleted only after the target queue accepted
    it.
    """
    moved = empty = 0
    while moved < limit and empty < _EMPTY_RECEIVES:
        messages = dead_letter_queue.receive()
        empty = 0 if messages else empty + 1
        refused = queue.send([message.body for message in messages])
        sent = [message for message in messages if message.body not in refused]
        dead_letter_queue.delete(sent)
        moved += len(sent)
        if messages and not sent:
            break
    return moved


def _usable_bodies(spec: RelaySpec, lake: Lake, result: RedriveResult) -> list[str]:
    """Returns the bodies of quarantined messages that can be parsed now and contain a file event that the log lacks."""
    rows = lake.rows(message_quarantine_key(spec.relay), columns=["body"])
    bodies: list[str] = [] if rows is None else list(dict.fromkeys(rows.column("body").to_pylist()))
    result.quarantined = len(bodies)
    names: dict[str, set[bytes]] = {}
    for body in bodies:
        parsed = parse_message(body, buckets=spec.buckets)
        if parsed.problems:
            result.reasons[parsed.reason] += 1
            continue
        names[body] = {
            file_event_identity(event.bucket, event.key, event.etag, event.version_id, overwrites=spec.overwrites)
            for event in parsed.events
        }
    logged = _logged_identities(spec, lake, set().union(*names.values()))
    usable = [body for body, identities in names.items() if identities - logged]
    result.usable, result.already_logged = len(usable), len(names) - len(usable)
    return usable


def _logged_identities(spec: RelaySpec, lake: Lake, identities: set[bytes]) -> set[bytes]:
    """Returns those of the identities that are in the log."""
    logged: set[bytes] = set()
    if not identities:
        return logged
    columns = ("seq", "bucket", "key", "etag", "version_id")
    for part in FileEventLog(lake, spec.relay).read_parts(columns=columns):
        for _, *parts in zip(*(part.column(name).to_pylist() for name in columns), strict=True):
            name = file_event_identity(*parts, overwrites=spec.overwrites)
            if name in identities:
                logged.add(name)
        if logged == identities:
            break
    return logged
