"""How far a reader of changes has come: a version of the table it follows, as a text that can be kept anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deltaworks.errors import ConfigError
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

#: What tells of changes: the notification table, or Delta's own feed of the data table.
Through = Literal["notifications", "change_feed"]
#: Key of `userMetadata`: the position whose changes a reader's table has.
POSITION = "changes_position"
_FORMAT = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePosition:
    """A position of `read_changes`: everything up to `version` of the table with `table_id` has been read.

    `str(position)` is the text to keep, `ChangePosition.parse` reads it. What is in it is no business of a reader's.
    """

    through: Through
    table_id: str
    version: int

    def __str__(self) -> str:
        return f"{_FORMAT}:{self.through}:{self.version}:{self.table_id}"

    @classmethod
    def parse(cls, text: str) -> ChangePosition:
        """The position that was kept.

        Raises:
            ConfigError: CHANGES_POSITION_UNKNOWN.
        """
        form, _, rest = text.partition(":")
        through, _, rest = rest.partition(":")
        version, _, table_id = rest.partition(":")
        try:
            if form != _FORMAT or through not in ("notifications", "change_feed"):
                raise ValueError(text)
            kind: Through = "notifications" if through == "notifications" else "change_feed"
            return cls(through=kind, version=int(version), table_id=table_id)
        except ValueError as error:
            raise ConfigError(
                "CHANGES_POSITION_UNKNOWN",
                f"{text[:200]!r} is no position that a read of changes gave.",
                hint="Keep str(changes.position) and give it back as it was, or None to read everything.",
            ) from error


def kept_position(lake: Lake, key: str) -> ChangePosition | None:
    """The position in the newest commit at `key` that has one; None where there is no table, or none was kept.

    Raises:
        ConfigError: CHANGES_POSITION_UNKNOWN.
    """
    table = lake.open(key)
    if table is None:
        return None
    for commit in commit_history(lake, key, newest=table.version()):
        if POSITION in commit.metadata:
            return ChangePosition.parse(str(commit.metadata[POSITION]))
    return None
