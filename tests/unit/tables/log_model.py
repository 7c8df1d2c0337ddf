"""A small model of Delta's protocol: it writes logs as other engines do, and knows what each version contains."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from deltaworks.control.objects import open_objects
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import state_at
from deltaworks.testing import local_lake, present

KEY = "tables/shop/orders"
FIELDS = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (("n", "long"), ("at", "timestamp"), ("day", "date"), ("price", "decimal(10,2)"))
]
START = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
#: Forms of a checkpoint: one file, parts, and those of version 2.
Form = Literal["classic", "parts", "v2_parquet", "v2_json", "v2_classic_name"]
FORMS: tuple[Form, ...] = ("classic", "parts", "v2_parquet", "v2_json", "v2_classic_name")
Stats = Literal["text", "struct", "none"]

_MAP = pa.map_(pa.string(), pa.string())
_TEXTS = pa.list_(pa.string())
_BOUNDS = pa.struct(
    [("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("price", pa.decimal128(10, 2))]
)
_PARSED = pa.struct(
    [
        ("numRecords", pa.int64()),
        ("minValues", _BOUNDS),
        ("maxValues", _BOUNDS),
        ("nullCount", pa.struct([(item["name"], pa.int64()) for item in FIELDS])),
    ]
)


def _add_type(stats: Stats) -> pa.DataType:
    fields: list[tuple[str, pa.DataType]] = [
        ("path", pa.string()),
        ("partitionValues", _MAP),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
    ]
    if stats != "struct":
        return pa.struct([*fields, ("stats", pa.string())])
    return pa.struct([*fields, ("stats_parsed", _PARSED)])


def _schema(stats: Stats) -> pa.Schema:
    remove = pa.struct(
        [
            ("path", pa.string()),
            ("deletionTimestamp", pa.int64()),
            ("dataChange", pa.bool_()),
            ("partitionValues", _MAP),
            ("size", pa.int64()),
        ]
    )
    metadata = pa.struct(
        [
            ("id", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", _MAP)])),
            ("schemaString", pa.string()),
            ("partitionColumns", _TEXTS),
            ("configuration", _MAP),
            ("createdTime", pa.int64()),
        ]
    )
    protocol = pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", _TEXTS),
            ("writerFeatures", _TEXTS),
        ]
    )
    return pa.schema(
        [
            ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
            ("add", _add_type(stats)),
            ("remove", remove),
            ("metaData", metadata),
            ("protocol", protocol),
            ("checkpointMetadata", pa.struct([("version", pa.int64())])),
            (
                "sidecar",
                pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]),
            ),
        ]
    )


@dataclass(frozen=True)
class Snapshot:
    """What a version of the table contains: rows by file, removed files, and transactions."""

    rows: dict[str, int] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    transactions: dict[str, int] = field(default_factory=dict)


@dataclass
class LogModel:
    """A table written commit by commit. Every file has real rows."""

    root: Path
    features: tuple[str, ...] = ()
    snapshots: list[Snapshot] = field(default_factory=list)
    actions: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Files whose removal has no time.
    undated: set[str] = field(default_factory=set)
    #: Newest version that can be read from a checkpoint, and the oldest commit that exists.
    oldest_commit: int = 0

    def __post_init__(self) -> None:
        self.log.mkdir(parents=True)
        self._metadata = {
            "id": "t",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": FIELDS}),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": 1,
        }
        self.commit({"protocol": self.protocol}, {"metaData": self._metadata}, snapshot=Snapshot())

    @property
    def lake(self) -> Lake:
        """The lake with the table."""
        return local_lake(self.root)

    @property
    def folder(self) -> Path:
        """The table's folder."""
        return self.root / KEY

    @property
    def log(self) -> Path:
        """The folder of the log."""
        return self.folder / "_delta_log"

    @property
    def newest(self) -> int:
        """The newest version."""
        return len(self.snapshots) - 1

    @property
    def now(self) -> Snapshot:
        """The newest version's content."""
        return self.snapshots[-1]

    @property
    def protocol(self) -> dict[str, Any]:
        """The table's protocol."""
        if not self.features:
            return {"minReaderVersion": 1, "minWriterVersion": 2}
        readers = [name for name in self.features if name not in ("inCommitTimestamp", "coordinatedCommits-preview")]
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": readers,
            "writerFeatures": list(self.features),
        }

    def commit(self, *actions: dict[str, Any], snapshot: Snapshot, info: dict[str, Any] | None = None) -> None:
        """Writes a commit; without `info` it has no `commitInfo`."""
        lines = [] if info is None else [{"commitInfo": info}]
        path = self.log / f"{len(self.snapshots):020d}.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in (*lines, *actions)))
        self.snapshots.append(snapshot)

    def add(self, rows: int, *, stats: Stats = "text", info: dict[str, Any] | None = None) -> str:
        """Commits a new file."""
        name = f"part-{uuid.uuid4()}.parquet"
        values = list(range(rows))
        times = [START + dt.timedelta(hours=value) for value in values]
        data = {"n": values, "at": times, "day": [time.date() for time in times], "price": [None] * rows}
        types = [("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("price", _BOUNDS[3].type)]
        pq.write_table(pa.table(data, schema=pa.schema(types)), self.folder / name)
        bounds = {"minValues": self._bounds(0), "maxValues": self._bounds(rows - 1)}
        text = json.dumps({"numRecords": rows, **bounds, "nullCount": {"n": 0}})
        action = {
            "path": name,
            "partitionValues": {},
            "size": (self.folder / name).stat().st_size,
            "modificationTime": 1_700_000_000_000 + len(self.snapshots),
            "dataChange": True,
            **({} if stats == "none" else {"stats": text}),
        }
        self.actions[name] = action
        self.commit({"add": action}, snapshot=replace(self.now, rows={**self.now.rows, name: rows}), info=info)
        return name

    def remove(self, name: str, *, info: dict[str, Any] | None = None, is_dated: bool = True) -> None:
        """Commits the removal of a file; with `is_dated` False, without its time."""
        if not is_dated:
            self.undated.add(name)
        remaining = {path: rows for path, rows in self.now.rows.items() if path != name}
        snapshot = replace(self.now, rows=remaining, removed=self.now.removed | {name})
        self.commit({"remove": self._remove(name)}, snapshot=snapshot, info=info)

    def set_transaction(self, number: int) -> None:
        """Commits a transaction without files."""
        transactions = {**self.now.transactions, "app": number}
        self.commit({"txn": {"appId": "app", "version": number}}, snapshot=replace(self.now, transactions=transactions))

    def checkpoint(
        self, form: Form = "classic", *, parts: int = 2, stats: Stats = "text", written: int | None = None
    ) -> None:
        """Writes a checkpoint of the newest version.

        Args:
            stats: `struct` has `stats_parsed` only.
            written: write only this many parts, as if the writer had been interrupted.
        """
        head: list[dict[str, Any]] = [{"protocol": self.protocol}, {"metaData": self._metadata}]
        head += [{"txn": {"appId": name, "version": number}} for name, number in self.now.transactions.items()]
        files = [{"add": self._checkpointed(name, stats)} for name in self.now.rows]
        files += [{"remove": self._remove(name)} for name in sorted(self.now.removed)]
        name = f"{self.newest:020d}.checkpoint"
        if form == "classic":
            self._write(f"{name}.parquet", [*head, *files], stats)
        elif form == "parts":
            rows = [*head, *files]
            for part in range(parts if written is None else written):
                self._write(f"{name}.{part + 1:010d}.{parts:010d}.parquet", rows[part::parts], stats)
        else:
            self._write_version_2(name, form, head, files, stats)

    def _write_version_2(
        self, name: str, form: Form, head: list[dict[str, Any]], files: list[dict[str, Any]], stats: Stats
    ) -> None:
        sidecars = []
        for half in (files[::2], files[1::2]):
            path = f"{uuid.uuid4()}.parquet"
            self._write(f"_sidecars/{path}", half, stats)
            size = (self.log / "_sidecars" / path).stat().st_size
            sidecars.append({"sidecar": {"path": path, "sizeInBytes": size, "modificationTime": 1}})
        top: list[dict[str, Any]] = [{"checkpointMetadata": {"version": self.newest}}, *head, *sidecars]
        if form == "v2_json":
            text = "".join(json.dumps(action) + "\n" for action in top)
            (self.log / f"{name}.{uuid.uuid4()}.json").write_text(text)
        else:
            self._write(
                f"{name}.parquet" if form == "v2_classic_name" else f"{name}.{uuid.uuid4()}.parquet", top, stats
            )

    def expire_commits(self, before: int) -> None:
        """Deletes the commits before a version, as writers do after a checkpoint."""
        for version in range(self.oldest_commit, before):
            (self.log / f"{version:020d}.json").unlink()
        self.oldest_commit = max(before, self.oldest_commit)

    def _bounds(self, value: int) -> dict[str, Any]:
        time = START + dt.timedelta(hours=value)
        return {"n": value, "at": time.isoformat(timespec="milliseconds")[:-6] + "Z", "day": f"{time:%Y-%m-%d}"}

    def _remove(self, name: str) -> dict[str, Any]:
        size = self.actions[name]["size"]
        action = {"path": name, "dataChange": True, "partitionValues": {}, "size": size}
        return action if name in self.undated else {**action, "deletionTimestamp": 1_700_000_000_000}

    def _checkpointed(self, name: str, stats: Stats) -> dict[str, Any]:
        action = {**self.actions[name], "dataChange": False}
        if stats == "struct" and "stats" in action:
            text = json.loads(action.pop("stats"))
            for side in ("minValues", "maxValues"):
                bounds = text[side]
                text[side] = {
                    "n": bounds["n"],
                    "at": dt.datetime.fromisoformat(bounds["at"]),
                    "day": dt.date.fromisoformat(bounds["day"]),
                }
            action["stats_parsed"] = text
        return action

    def _write(self, name: str, rows: list[dict[str, Any]], stats: Stats) -> None:
        target = self.log / name
        target.parent.mkdir(exist_ok=True)
        as_maps = [{kind: _with_maps(action) for kind, action in row.items()} for row in rows]
        pq.write_table(pa.Table.from_pylist(as_maps, schema=_schema(stats)), target)


def _with_maps(action: dict[str, Any]) -> dict[str, Any]:
    """Returns an action whose maps are in Arrow's form."""
    changed = {name: list(action[name].items()) for name in ("partitionValues", "configuration") if name in action}
    if "format" in action:
        changed["format"] = {**action["format"], "options": []}
    return {**action, **changed}


def convert_to_version_2(lake: Lake, key: str) -> None:
    """Gives an existing table a checkpoint of version 2 with a unique name, and removes the commits before it."""
    state = state_at(lake, open_objects(lake.storage), key)
    features = ["v2Checkpoint"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    log = Path(lake.storage.prefix) / key / "_delta_log"
    actions: list[dict[str, Any]] = [{"checkpointMetadata": {"version": state.version}}, {"protocol": protocol}]
    actions += [{"metaData": state.metadata}, *({"add": added} for added in state.files.values())]
    actions += [{"txn": {"appId": name, "version": number}} for name, number in state.transactions.items()]
    for old in log.iterdir():
        old.unlink()
    name = f"{state.version:020d}.checkpoint.{uuid.uuid4()}.json"
    (log / name).write_text("".join(json.dumps(action) + "\n" for action in actions))


def convert_to_adaptive_metadata(lake: Lake, key: str) -> None:
    """Gives an existing table the layout of `adaptiveMetadata`: a commit embeds its state, and no others exist."""
    state = state_at(lake, open_objects(lake.storage), key)
    features = ["adaptiveMetadata"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    log = Path(lake.storage.prefix) / key / "_delta_log"
    for old in log.iterdir():
        old.unlink()
    embedded = {"protocol": protocol, "metaData": state.metadata, "contentRoot": {"path": "metadata/root.parquet"}}
    commit = [{"commitInfo": {"timestamp": None, "dataChange": True}}, {"checkpoint": embedded}]
    (log / f"{state.version:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in commit))


def drop_statistics(lake: Lake, key: str) -> None:
    """Removes the statistics of all files of an existing table, as writers without them leave it."""
    for path in (Path(lake.storage.prefix) / key / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def keep_statistics_as_struct(lake: Lake, key: str) -> None:
    """Gives an existing table a checkpoint whose statistics are only in a struct."""
    table = present(lake.open(key))
    form = {"delta.checkpoint.writeStatsAsJson": "false", "delta.checkpoint.writeStatsAsStruct": "true"}
    table.alter.set_table_properties(form)
    table.create_checkpoint()
