"""What a gold table was built from: its own newest commit says so, hence it is true whatever happened to a job.

A commit that changed rows without saying what from (a RESTORE, somebody's DELETE) makes the table's content
unknown, and an unknown content is rebuilt whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from deltaworks.gold.inputs import PinnedInput
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

#: Keys of `userMetadata` beside those of every commit.
BUILT_FROM = "built_from"
FINGERPRINT = "fingerprint"


@dataclass(frozen=True, slots=True)
class BuiltFrom:
    """Version of each input, and the digest of the definition. `reason` says why nothing is known."""

    versions: Mapping[str, int]
    fingerprint: str
    reason: str = ""

    @property
    def known(self) -> bool:
        """Whether the table's content follows from `versions`."""
        return not self.reason


def read_built_from(lake: Lake, key: str) -> BuiltFrom:
    """What the gold table at `key` was last built from, by the newest commit that changed its rows."""
    table = lake.open(key)
    if table is None:
        return _unknown("it does not exist yet")
    for commit in commit_history(lake, key, newest=table.version()):
        if BUILT_FROM in commit.metadata:
            return BuiltFrom(commit.metadata[BUILT_FROM], str(commit.metadata.get(FINGERPRINT)))
        if commit.changes_rows:
            return _unknown(f"its version {commit.version} ({commit.operation}) is not a build")
    return _unknown("its log no longer says what it was built from")


def _unknown(reason: str) -> BuiltFrom:
    return BuiltFrom({}, "", reason)


def fingerprint(table: GoldTableSpec, sql: str, dedupe: DedupeSpec | None, inputs: Mapping[str, PinnedInput]) -> str:
    """A digest of all but data that the table's content follows from: the SQL, the rules, which tables are read."""
    said = [
        sql,
        table.model_dump(mode="json", exclude={"description", "checks"}),
        dedupe.model_dump(mode="json") if dedupe else None,
        {name: pinned.table_id for name, pinned in inputs.items()},
    ]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
