"""What an edit of a field of a declaration needs: markers that stand in the annotations of the spec's fields.

A field is compared as a whole and marked with an `Edit`; or it holds specs, whose own fields are compared. A test
refuses a field that is neither. Advice that one module alone gives is written there, beside the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What a change needs. The last three are unsafe: a stream starts on them only where they are accepted, if ever."""

    SAFE = "safe"
    RESTART = "restart"
    BACKFILL = "backfill"
    MIXED_ROWS = "mixed_rows"
    NEW_GENERATION = "new_generation"
    REFUSED = "refused"

    @property
    def is_unsafe(self) -> bool:
        """Whether a stream refuses to start on it."""
        return self in (Effect.MIXED_ROWS, Effect.NEW_GENERATION, Effect.REFUSED)


@dataclass(frozen=True, slots=True)
class Edit:
    """A field compared as a whole. `{name}`, `{table}` and `{pipeline}` in the advice are filled in."""

    effect: Effect
    advice: str


@dataclass(frozen=True, slots=True)
class OptionalSection:
    """A spec that may be absent: what it means to declare or to remove it. Its own fields are compared else."""

    edit: Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedItems:
    """A list of named specs, compared name by name."""

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
