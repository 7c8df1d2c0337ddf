"""Checks a lake after erasures with DuckDB over its files, without product code.

delta-rs lists the files of a version; rows, and all other files in the folders, are read here.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

#: Content of a bulk row, independent of file and column order.
_ROW = "event_id, event_name, event_time, event_date, n, player, _seq, _position"


@dataclass(frozen=True, slots=True)
class Content:
    """Number of rows and the sum of their hashes."""

    rows: int
    hashes: int


@dataclass(slots=True)
class PeopleVerdict:
    """Errors found, as sentences, and the checked quantities in `counts`."""

    wrong: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)


class LakeFiles:
    """The tables of a pipeline in a folder, read from their files."""

    def __init__(self, tables: Path) -> None:
        self._tables = tables
        self._duck = duckdb.connect()
        self._duck.execute("SET threads = 2")

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self._tables.glob("*/_delta_log"))

    def version(self, table: str) -> int:
        return DeltaTable(str(self._tables / table)).version()

    def files(self, table: str, version: int | None = None) -> list[str]:
        """Returns the files of the newest version, or of a given one."""
        opened = DeltaTable(str(self._tables / table), version=version)
        features = set(opened.protocol().reader_features or ())
        assert "deletionVectors" not in features, "these files would have rows that nobody sees"
        return [uri.removeprefix("file://") for uri in opened.file_uris()]

    def on_disk(self, table: str) -> list[str]:
        """Returns all files in the folder, whether or not a version names them."""
        found = sorted(map(str, (self._tables / table).rglob("*.parquet")))
        return [path for path in found if "_delta_log" not in path]

    def remaining_rows(self, table: str, gone: Collection[str], *, version: int | None = None) -> Content:
        """Returns the bulk rows of people who are not erased."""
        rows, hashes = self._one(
            f"SELECT count(*), coalesce(sum(hash({_ROW})::HUGEINT), 0) FROM {_READ} "
            "WHERE event_id[1] = 'b' AND player NOT IN (SELECT unnest(?))",
            self.files(table, version),
            list(gone),
        )
        return Content(rows, hashes)

    def rows_of(self, table: str, people: Collection[str], *, version: int | None = None) -> Counter[str]:
        """Returns these people's bulk rows, by token."""
        query = (
            f"SELECT player, count(*) FROM {_READ} "
            "WHERE event_id[1] = 'b' AND player IN (SELECT unnest(?)) GROUP BY player"
        )
        return Counter(dict(self._duck.execute(query, [self.files(table, version), list(people)]).fetchall()))

    def landed(self, table: str) -> Counter[str]:
        """Returns how often each event of the stream is in the table."""
        if table == "quarantine":
            query = f"SELECT raw->>'id', count(*) FROM {_READ} GROUP BY 1"
        else:
            query = f"SELECT event_id, count(*) FROM {_READ} WHERE event_id[1] <> 'b' GROUP BY 1"
        files = self.files(table)
        return Counter(dict(self._duck.execute(query, [files]).fetchall()) if files else {})

    def batches_of_objects(self, table: str) -> dict[int, int]:
        """Returns by object how many batches have rows from it."""
        query = f"SELECT _seq, count(DISTINCT _batch_id) FROM {_READ} WHERE _seq > 0 GROUP BY _seq"
        return dict(self._duck.execute(query, [self.files(table)]).fetchall())

    def mutable(self) -> Counter[tuple[Any, ...]]:
        query = f"SELECT event_id, contact_id, coalesce(_deleted, false), f FROM {_READ}"
        return Counter(self._duck.execute(query, [self.files("activities")]).fetchall())

    def rows_with_tokens(self, table: str, tokens: Collection[str]) -> int:
        """Returns rows on disk, in any version, that contain one of these tokens in a text column."""
        files = self.on_disk(table)
        if not files:
            return 0
        described = self._duck.execute(f"DESCRIBE SELECT * FROM {_READ}", [files]).fetchall()
        texts = [name for name, kind, *_ in described if kind == "VARCHAR"]
        if not texts:
            return 0
        # A token is 29 characters that begin with p1_, anywhere in a text.
        found = " OR ".join(
            f"list_has_any(regexp_extract_all(\"{name}\", 'p1_[a-z2-7]{{26}}'), ?::VARCHAR[])" for name in texts
        )
        return int(self._one(f"SELECT count(*) FROM {_READ} WHERE {found}", files, *[list(tokens)] * len(texts))[0])

    def _one(self, query: str, *values: Any) -> tuple[Any, ...]:
        (row,) = self._duck.execute(query, list(values)).fetchall()
        return tuple(row)


_READ = "read_parquet(?, hive_partitioning = true, union_by_name = true)"


def wrong_with_certificates(
    folder: Path, requests: Sequence[str], *, table: str, at_least: dict[str, int], at_most: dict[str, int]
) -> list[str]:
    """Returns errors in certificates: each request needs one, they must form a chain, and row counts must add up.

    Args:
        at_least: rows of the person in `table` before the run, by request; `at_most` includes rows landed since.
    """
    wrong, before = [], ""
    found = {path.stem: path.read_bytes() for path in folder.glob("*.json")}
    by_number = sorted((json.loads(data)["number"], name) for name, data in found.items())
    for number, name in by_number:
        said = json.loads(found[name])
        if said["previous_sha256"] != before:
            wrong.append(f"certificate {number} does not follow the one before it")
        before = hashlib.sha256(found[name]).hexdigest()
        for one in said["tables"]:
            adds_up = one["rows_after"] == one["rows_before"] - one["erased_before"] and not one["erased_after"]
            if not adds_up or one["other_rows_after"] != one["other_rows_before"]:
                wrong.append(f"{name}: rows of {one['table']} do not add up")
        person_rows = next(one["person_rows"] for one in said["tables"] if one["table"] == table)
        if not at_least[name] <= person_rows <= at_most[name]:
            wrong.append(f"{name}: {person_rows} rows of {table}, and there were {at_least[name]} to {at_most[name]}")
        if said["scan"]["hits"] or not said["scan"]["hits_before"]:
            wrong.append(f"{name}: {said['scan']}")
    missing = set(requests) - set(found)
    return [*wrong, *([f"{len(missing)} requests have no certificate"] if missing else [])]
