"""Effects of spec changes: markers in the annotations of spec fields.

A field is either marked with an `Edit` and compared as one value, or it holds specs whose own fields are compared. A
test rejects any other field. Advice for a single module is defined there, next to its fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What a change requires. The last three are unsafe: a stream only starts on them after they are accepted, if at
    all.
    """

    SAFE = "safe"
    RESTART = "restart"
    BACKFILL = "backfill"
    MIXED_ROWS = "mixed_rows"
    NEW_GENERATION = "new_generation"
    REFUSED = "refused"

    @property
    def is_unsafe(self) -> bool:
        """Whether the stream refuses to start after this change."""
        return self in (Effect.MIXED_ROWS, Effect.NEW_GENERATION, Effect.REFUSED)


@dataclass(frozen=True, slots=True)
class Edit:
    """Marks a field that is compared as one value. `{name}`, `{table}` and `{pipeline}` in the advice are replaced."""

    effect: Effect
    advice: str


@dataclass(frozen=True, slots=True)
class OptionalSection:
    """Marks an optional spec: the effect of adding or removing it. Otherwise its own fields are compared."""

    edit: Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedItems:
    """Marks a list of named specs that are compared by name."""

    added: Edit
    removed: Edit


Marker = Edit | OptionalSection | NamedItems

NEXT_START = Edit(Effect.RESTART, "Holds from the stream's next start: `deltaworks restart {pipeline}`.")
FIRST_START_ONLY = Edit(Effect.SAFE, "Nothing: a stream that has an offset continues from there.")
IMMEDIATE = Edit(Effect.SAFE, "Nothing: shown as soon as Airflow reads the file again.")
NEXT_MAINTENANCE = Edit(Effect.SAFE, "Nothing: holds from the next maintenance run.")
CHANGES_MEANING = Edit(
    Effect.MIXED_ROWS,
    "Old and new rows would mean different things. Give it a new name instead; or accept it with `deltaworks pipelines "
    "diff {pipeline} --accept`, restart, and make old rows alike with `deltaworks reprocess {pipeline} --from-start`.",
)
CHANGES_FORMAT = Edit(
    Effect.MIXED_ROWS,
    "Objects of the old form could not be read any more, neither those that wait nor by a reprocess. Declare a "
    "pipeline of its own; or let the stream work off what waits, accept it with `deltaworks pipelines diff {pipeline} "
    "--accept`, and reprocess nothing that is older.",
)
CHANGES_PARSING = Edit(
    Effect.BACKFILL,
    "Holds for what is read from the stream's next start on. Rows that landed before keep to the old reading until "
    "`deltaworks reprocess {pipeline} --from-start`.",
)
CHANGES_SOURCE = Edit(
    Effect.NEW_GENERATION,
    "Offsets and `_seq` of the old source mean nothing in the new one. Declare it as a pipeline of its own, under a "
    "new name; or give up what has landed: `deltaworks stop {pipeline}`, `deltaworks pipelines start-over {pipeline}`.",
)
CHANGES_ADDRESS = Edit(
    Effect.MIXED_ROWS,
    "Offsets stay as they are: they must mean the same at the new address. If it is another name of the same place, "
    "accept it with `deltaworks pipelines diff {pipeline} --accept`; otherwise declare a pipeline of its own.",
)
