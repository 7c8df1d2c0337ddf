"""Checks a lake that a good and a hostile producer share: no event of either may be lost or doubled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaworks.control import paths
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.file_event_log_writer import message_quarantine_key
from deltaworks.tables.lake import Lake
from deltaworks.testing import table_rows
from tests.faults.harness.fault_project import PIPELINE, RELAY
from tests.faults.harness.hostile_objects import HostileObject
from tests.faults.harness.oracle import Row, added_again
from tests.faults.harness.slow_count import events_in

_WHOLE = -1
#: A row with one of these reasons may account for the unread rest of a payload.
_OF_A_REST = frozenset({"over_budget", "malformed"})


@dataclass(frozen=True, slots=True)
class ObjectOutcome:
    """Outcome of one object: positions of its landed events and of its quarantine rows, with reasons."""

    landed: tuple[int, ...]
    quarantined: tuple[int, ...]
    reasons: Counter[str]

    def wrong(self, sent: HostileObject) -> str:
        """Returns the contradictions with the sent object; empty if all events are accounted for."""
        rows = self.landed + self.quarantined
        if not rows:
            return "it vanished: no row has it"
        if len(set(rows)) < len(rows):
            return f"{len(rows) - len(set(rows))} of its events are there twice"
        if _WHOLE in rows:
            return "" if len(rows) == 1 else f"it is in quarantine as a whole, and {len(rows) - 1} events of it are too"
        count = events_in(sent.body, at_most=len(rows) + 1)
        if count is None or count == len(rows):
            return ""
        if self.reasons.keys() & _OF_A_REST and len(rows) <= count + 1:
            return ""
        return f"{len(self.landed)} rows and {len(self.quarantined)} in quarantine are not its {count} events"


@dataclass(slots=True)
class HostileVerdict:
    """Result of the check. `wrong` is by key; `reasons` counts quarantine rows by kind of object and reason."""

    lost: Counter[Row] = field(default_factory=Counter)
    doubled: Counter[Row] = field(default_factory=Counter)
    good_in_quarantine: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    objects: Counter[str] = field(default_factory=Counter)
    unaccounted: Counter[str] = field(default_factory=Counter)
    landed: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)

    @property
    def is_exact(self) -> bool:
        """Whether every good event is in each of its tables once and every hostile object is accounted for."""
        return not (self.lost or self.doubled or self.good_in_quarantine or self.wrong)


def sequence_numbers(lake: Lake) -> dict[str, int]:
    """Returns each object's sequence number in the relay's log, by key."""
    rows = FileEventLog(lake, RELAY).read(0, columns=["seq", "key"]).to_pylist()
    return {row["key"]: row["seq"] for row in rows}


def accounted_numbers(lake: Lake) -> set[int]:
    """Returns the sequence numbers of objects with a row in bronze or quarantine."""
    found: set[int] = set()
    for name in ("events", "quarantine"):
        rows = lake.rows(paths.table(PIPELINE, name), columns=["_seq"])
        found.update([] if rows is None else rows.column("_seq").unique().to_pylist())
    return found


def judge_both(
    lake: Lake, tables: list[str], owed: Counter[Row], hostile: Mapping[str, HostileObject]
) -> HostileVerdict:
    """Compares the tables and quarantine with the events of both producers."""
    fates = HostileVerdict()
    _judge_good(lake, tables, owed, fates)
    _judge_hostile(lake, hostile, fates)
    messages = lake.rows(message_quarantine_key(RELAY))
    fates.messages.update([] if messages is None else [row["reason"] for row in messages.to_pylist()])
    return fates


def _judge_good(lake: Lake, tables: list[str], owed: Counter[Row], fates: HostileVerdict) -> None:
    """Checks the good producer's events as queries and as change readers see a table; ignores other events."""
    for name in tables:
        key = paths.table(PIPELINE, name)
        rows = lake.rows(key, columns=["event_id"])
        values = [] if rows is None else rows.column("event_id").to_pylist() + added_again(lake, key, "event_id")[0]
        seen = Counter((name, str(value)) for value in values)
        mine = Counter({row: count for row, count in owed.items() if row[0] == name})
        fates.lost += mine - seen
        fates.doubled += Counter({row: seen[row] - count for row, count in mine.items() if seen[row] > count})
    for row in table_rows(lake, PIPELINE, "quarantine", "object_key", "reasons"):
        if row["object_key"].startswith("good/"):
            fates.good_in_quarantine[_named(row["reasons"][0])] += 1


def _judge_hostile(lake: Lake, hostile: Mapping[str, HostileObject], fates: HostileVerdict) -> None:
    landed, quarantined = defaultdict(list), defaultdict(list)
    reasons: dict[int, Counter[str]] = defaultdict(Counter)
    details: dict[int, Counter[str]] = defaultdict(Counter)
    for row in table_rows(lake, PIPELINE, "events", "_seq", "_position"):
        landed[row["_seq"]].append(row["_position"])
    for row in table_rows(lake, PIPELINE, "quarantine", "_seq", "_position", "reasons"):
        quarantined[row["_seq"]].append(row["_position"])
        reasons[row["_seq"]][row["reasons"][0]["code"]] += 1
        details[row["_seq"]][_named(row["reasons"][0])] += 1
    numbers = sequence_numbers(lake)
    for key, sent in hostile.items():
        seq = numbers.get(key)
        fates.objects[sent.kind] += 1
        if seq is None:
            fates.wrong[key] = "it is not in the relay's log"
            fates.unaccounted[sent.kind] += 1
            continue
        fate = ObjectOutcome(tuple(landed[seq]), tuple(quarantined[seq]), reasons[seq])
        if wrong := fate.wrong(sent):
            fates.wrong[key] = wrong
            fates.unaccounted[sent.kind] += 1
        fates.landed[sent.kind] += len(fate.landed)
        for reason, count in details[seq].items():
            fates.reasons[sent.kind, reason] += count


def _named(reason: Mapping[str, str]) -> str:
    """Returns a reason as the report shows it, with the budget's name for `over_budget`."""
    return f"{reason['code']} ({reason['path']})" if reason["code"] == "over_budget" else reason["code"]
