"""Computes the expected final rows by replaying all activities and requests in order of time.

Shares no code with the pipeline or its resolution. Within one organisation, requests are applied before activities of
the same time. Each request affects the rows that had its id immediately before that time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from generator.engagement_org import Activity, Request
from generator.engagement_settings import EngagementSettings

MOVES = ("rename", "merge", "delete", "undelete")
ROWS_FILE, NAMES_FILE, COUNTS_FILE = "truth_rows.parquet", "truth_names.parquet", "truth.json"
_ROWS_SCHEMA = pa.schema(
    [
        ("org_id", pa.string()),
        ("event_id", pa.string()),
        ("origin_contact_id", pa.string()),
        ("contact_id", pa.string()),
        ("template_id", pa.string()),
        ("deleted", pa.bool_()),
        ("copies", pa.int32()),
    ]
)
_NAMES_SCHEMA = pa.schema([("org_id", pa.string()), ("id", pa.string()), ("name", pa.string())])


@dataclass(slots=True)
class _Row:
    """The current state of one activity during the replay."""

    activity: Activity
    contact_id: str
    template_id: str
    copies: int
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngagementTruth:
    """The expected results.

    Attributes:
        rows: the final state of each activity. `copies` is how often it was delivered, which is its number of rows. A
            deleted row keeps the id under which it was deleted.
        names: the name of each id that has one.
        activities, requests: row counts of these tables; `malformed` rows are in quarantine.
        requests_by_op: requests by operation, including duplicates.
    """

    settings: dict[str, Any]
    rows: pa.Table
    names: pa.Table
    activities: int
    requests: int
    malformed: int
    requests_by_op: dict[str, int]

    def write(self, directory: Path) -> None:
        """Writes two Parquet files, and the counts as JSON."""
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.rows, directory / ROWS_FILE)
        pq.write_table(self.names, directory / NAMES_FILE)
        (directory / COUNTS_FILE).write_bytes(orjson.dumps(self.counts(), option=orjson.OPT_INDENT_2))

    @classmethod
    def read(cls, directory: Path) -> EngagementTruth:
        """Reads the files of `write`."""
        counts = orjson.loads((directory / COUNTS_FILE).read_bytes())
        counts.pop("deleted"), counts.pop("moved")
        rows, names = (pq.read_table(directory / name) for name in (ROWS_FILE, NAMES_FILE))
        return cls(rows=rows, names=names, **counts)

    def tokenized(self, token_of: Callable[[str, str], str]) -> EngagementTruth:
        """Returns the expected results for a pipeline that tokenizes contact ids and names."""
        contact, name = partial(token_of, "contact"), partial(token_of, "name")
        rows, names = self.rows, self.names
        for column in ("origin_contact_id", "contact_id"):
            rows = _map_column(rows, column, contact)
        return replace(self, rows=rows, names=_map_column(_map_column(names, "id", contact), "name", name))

    def counts(self) -> dict[str, Any]:
        """Returns the counts as JSON values."""
        rows = self.rows.select(["origin_contact_id", "contact_id", "deleted"]).to_pylist()
        return {
            "settings": self.settings,
            "activities": self.activities,
            "requests": self.requests,
            "malformed": self.malformed,
            "requests_by_op": self.requests_by_op,
            "deleted": sum(row["deleted"] for row in rows),
            "moved": sum(row["origin_contact_id"] != row["contact_id"] for row in rows),
        }


def _map_column(table: pa.Table, column: str, change: Callable[[str], str]) -> pa.Table:
    values = [change(value) for value in table.column(column).to_pylist()]
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values, pa.string()))


@dataclass(slots=True)
class EngagementLog:
    """The delivered, well-formed events in any order; `truth` replays them."""

    settings: EngagementSettings
    malformed: int = 0
    _activities: defaultdict[str, dict[int, list[Any]]] = field(default_factory=lambda: defaultdict(dict))
    _requests: defaultdict[str, list[Request]] = field(default_factory=lambda: defaultdict(list))

    def record(self, event: Activity | Request) -> None:
        """Records one delivered event."""
        if isinstance(event, Request):
            self._requests[event.org_id].append(event)
        else:
            self._activities[event.org_id].setdefault(event.number, [event, 0])[1] += 1

    def truth(self) -> EngagementTruth:
        """Replays the recorded events and returns the expected results."""
        columns: dict[str, list[Any]] = {name: [] for name in _ROWS_SCHEMA.names}
        names: list[dict[str, str]] = []
        by_op: defaultdict[str, int] = defaultdict(int)
        for org_id in sorted({*self._activities, *self._requests}):
            requests = self._requests.get(org_id, [])
            for request in requests:
                by_op[request.op] += 1
            activities = self._activities.get(org_id, {}).values()
            rows = [
                _Row(activity, activity.contact_id, activity.template_id, copies) for activity, copies in activities
            ]
            replay = _Replay()
            replay.run(rows, requests)
            for row in rows:
                values = (org_id, row.activity.event_id, row.activity.contact_id, row.contact_id, row.template_id)
                for name, value in zip(_ROWS_SCHEMA.names, (*values, row.deleted, row.copies), strict=True):
                    columns[name].append(value)
            names += [
                {"org_id": org_id, "id": contact_id, "name": name} for contact_id, name in sorted(replay.names.items())
            ]
        return EngagementTruth(
            settings=self.settings.as_mapping(),
            rows=pa.Table.from_pydict(columns, schema=_ROWS_SCHEMA),
            names=pa.Table.from_pylist(names, schema=_NAMES_SCHEMA),
            activities=sum(columns["copies"]),
            requests=sum(by_op.values()),
            malformed=self.malformed,
            requests_by_op=dict(sorted(by_op.items())),
        )


class _Replay:
    """Replays one organisation: the rows and the name of each id over time."""

    def __init__(self) -> None:
        self._rows_by_id: defaultdict[str, list[_Row]] = defaultdict(list)
        self._deleted_rows: defaultdict[str, list[_Row]] = defaultdict(list)
        self.names: dict[str, str] = {}
        self._deleted_names: dict[str, str] = {}

    def run(self, rows: Iterable[_Row], requests: Iterable[Request]) -> None:
        """Replays all rows and requests."""
        moments: defaultdict[int, tuple[list[Request], list[_Row]]] = defaultdict(lambda: ([], []))
        for request in requests:
            moments[request.at_ms][0].append(request)
        for row in rows:
            moments[row.activity.at_ms][1].append(row)
        for at_ms in sorted(moments):
            requests, new_rows = moments[at_ms]
            self._apply_requests(sorted(requests, key=lambda request: request.seq))
            for row in new_rows:
                self._rows_by_id[row.contact_id].append(row)

    def _apply_requests(self, requests: list[Request]) -> None:
        """Applies all requests of one time, by ascending `seq`."""
        for request in requests:
            if request.op == "update" and request.template_id is not None:
                for row in self._rows_by_id.get(request.id, ()):
                    row.template_id = request.template_id
            elif request.op == "rename_name" and request.name is not None:
                self.names[request.id] = request.name
        # If one id is moved several times at once, the move with the greatest `seq` wins: it overwrites earlier ones
        # here.
        moves = {request.id: request for request in requests if request.op in MOVES}
        moved = []
        for request in moves.values():
            if request.new_id != request.id:
                is_undelete = request.op == "undelete"
                rows = (self._deleted_rows if is_undelete else self._rows_by_id).pop(request.id, [])
                name = (self._deleted_names if is_undelete else self.names).pop(request.id, None)
                moved.append((request, rows, name))
        # If several ids move to one id, the name from the request with the greatest `seq` is kept.
        for request, rows, name in sorted(moved, key=lambda answer: -answer[0].seq):
            is_delete = request.op == "delete"
            target_id = request.new_id if request.new_id is not None else request.id
            for row in rows:
                row.contact_id, row.deleted = target_id, is_delete
            (self._deleted_rows if is_delete else self._rows_by_id)[target_id].extend(rows)
            if name is not None:
                (self._deleted_names if is_delete else self.names).setdefault(target_id, name)
