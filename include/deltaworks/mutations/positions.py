"""How far a reader of changes has come: a version of the table it follows, as a text that can be kept anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deltaworks.errors import ConfigError

#: What tells of changes: the notification table, or Delta's own feed of the data table.
Through = Literal["notifications", "change_feed"]
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
