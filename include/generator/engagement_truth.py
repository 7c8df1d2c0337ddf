"""What every row must end as, by replaying all activities and requests one after another, in order of their times.

Nothing is shared with the pipeline or with how it resolves requests: this is the answer sheet. Within one organisation
and at one time requests come first, each finding what was called by its id just before; then activities of that time.
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
    """An activity on its way through time."""

    activity: Activity
    contact_id: str
    template_id: str
    copies: int
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngagementTruth:
    """The right answers.

    Attributes:
        rows: what each activity ends as, and `copies`: how often it was delivered, so how many rows it has. A deleted
            one has the id it was deleted under.
        names: the name of each id that has one.
        activities, requests: rows of these tables; `malformed` rows are in quarantine.
        requests_by_op: of requests, second deliveries included.
    """

    settings: dict[str, Any]
    rows: pa.Table
    names: pa.Table
    activities: int
    requests: int
    malformed: int
    requests_by_op: dict[str, int]

    def write(self, directory: Path) -> None:
        """Write two Parquet files, and the counts as JSON."""
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.rows, directory / ROWS_FILE)
        pq.write_table(self.names, directory / NAMES_FILE)
        (directory / COUNTS_FILE).write_bytes(orjson.dumps(self.counts(), option=orjson.OPT_INDENT_2))

    @classmethod
    def read(cls, directory: Path) -> EngagementTruth:
        """What `write` wrote."""
        counts = orjson.loads((directory / COUNTS_FILE).read_bytes())
        counts.pop("deleted"), counts.pop("moved")
        rows, names = (pq.read_table(directory / name) for name in (ROWS_FILE, NAMES_FILE))
        return cls(rows=rows, names=names, **counts)

    def tokenized(self, token_of: Callable[[str, str], str]) -> EngagementTruth:
        """The same answers of a pipeline that strips: ids of contacts and their names are tokens, of kind and value."""
        contact, name = partial(token_of, "contact"), partial(token_of, "name")
        rows, names = self.rows, self.names
        for column in ("origin_contact_id", "contact_id"):
            rows = _map_column(rows, column, contact)
        return replace(self, rows=rows, names=_map_column(_map_column(names, "id", contact), "name", name))

    def counts(self) -> dict[str, Any]:
        """The counts, for people too."""
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
    """Everything that was delivered and can be read, in any order; `truth` replays it."""

    settings: EngagementSettings
    malformed: int = 0
    _activities: defaultdict[str, dict[int, list[Any]]] = field(default_factory=lambda: defaultdict(dict))
    _requests: defaultdict[str, list[Request]] = field(default_factory=lambda: defaultdict(list))

    def record(self, event: Activity | Request) -> None:
        """Take in one delivery."""
        if isinstance(event, Request):
            self._requests[event.org_id].append(event)
        else:
            self._activities[event.org_id].setdefault(event.number, [event, 0])[1] += 1

    def truth(self) -> EngagementTruth:
        """What everything that was noted must end as."""
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
    """One organisation: who is called what, moment by moment."""

    def __init__(self) -> None:
        self._rows_by_id: defaultdict[str, list[_Row]] = defaultdict(list)
        self._deleted_rows: defaultdict[str, list[_Row]] = defaultdict(list)
        self.names: dict[str, str] = {}
        self._deleted_names: dict[str, str] = {}

    def run(self, rows: Iterable[_Row], requests: Iterable[Request]) -> None:
        """Replay all of it."""
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
        """All requests of one moment, the lesser `seq` first."""
        for request in requests:
            if request.op == "update" and request.template_id is not None:
                for row in self._rows_by_id.get(request.id, ()):
                    row.template_id = request.template_id
            elif request.op == "rename_name" and request.name is not None:
                self.names[request.id] = request.name
        # Of several moves of one id the last counts: it takes the place of those before it.
        moves = {request.id: request for request in requests if request.op in MOVES}
        moved = []
        for request in moves.values():
            if request.new_id != request.id:
                is_undelete = request.op == "undelete"
                rows = (self._deleted_rows if is_undelete else self._rows_by_id).pop(request.id, [])
                name = (self._deleted_names if is_undelete else self.names).pop(request.id, None)
                moved.append((request, rows, name))
        # The name of the greatest `seq` is the first to arrive, and stays.
        for request, rows, name in sorted(moved, key=lambda answer: -answer[0].seq):
            is_delete = request.op == "delete"
            target_id = request.new_id if request.new_id is not None else request.id
            for row in rows:
                row.contact_id, row.deleted = target_id, is_delete
            (self._deleted_rows if is_delete else self._rows_by_id)[target_id].extend(rows)
            if name is not None:
                (self._deleted_names if is_delete else self.names).setdefault(target_id, name)
