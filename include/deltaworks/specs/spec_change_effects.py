"""Effects of spec changes, which spec fields declare as markers in their annotations.

A field is either marked with an `Edit` and compared as one value, or it holds specs whose own fields are compared. A
test rejects any other field. Advice for a single module is defined there, next to its fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What a changed field requires before or when the stream starts again.

    The last three are unsafe: the stream does not start until the change is accepted, or not at all.
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
    """Marks a field that is compared as one value. The advice may contain `{name}`, `{table}` and `{pipeline}`."""

    effect: Effect
    advice: str


@dataclass(frozen=True, slots=True)
class OptionalSection:
    """Marks an optional nested spec: the effect of adding or removing it. If both versions have it, its fields are
    compared.
    """

    edit: Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedItems:
    """Marks a list of specs that are matched by name: the effects of adding and of removing one."""

    added: Edit
    removed: Edit


Marker = Edit | OptionalSection | NamedItems

NEXT_START = Edit(Effect.RESTART, "Applies from the stream's next start: `deltaworks restart {pipeline}`.")
FIRST_START_ONLY = Edit(Effect.SAFE, "Nothing: a stream with an offset continues from it.")
IMMEDIATE = Edit(Effect.SAFE, "Nothing: visible after Airflow's next parse.")
NEXT_MAINTENANCE = Edit(Effect.SAFE, "Nothing: applies from the next maintenance run.")
CHANGES_MEANING = Edit(
    Effect.MIXED_ROWS,
    "Old and new rows would have different meanings. Use a new name instead; or accept it with `deltaworks "
    "pipelines diff {pipeline} --accept`, restart, and convert old rows with `deltaworks reprocess {pipeline} "
    "--from-start`.",
)
CHANGES_FORMAT = Edit(
    Effect.MIXED_ROWS,
    "Objects in the old format could no longer be read, neither waiting ones nor by a reprocess. Declare a new "
    "pipeline; or let the stream process waiting objects, accept it with `deltaworks pipelines diff {pipeline} "
    "--accept`, and do not reprocess older objects.",
)
CHANGES_PARSING = Edit(
    Effect.BACKFILL,
    "Applies from the stream's next start. Earlier rows keep their values until `deltaworks reprocess {pipeline} "
    "--from-start`.",
)
CHANGES_SOURCE = Edit(
    Effect.NEW_GENERATION,
    "Offsets and `_seq` of the old source are invalid for the new one. Declare a new pipeline; or discard all "
    "data: `deltaworks stop {pipeline}`, `deltaworks pipelines start-over {pipeline}`.",
)
CHANGES_ADDRESS = Edit(
    Effect.MIXED_ROWS,
    "Offsets are kept and must be valid at the new address. If it is the same source under another address, "
    "accept it with `deltaworks pipelines diff {pipeline} --accept`; otherwise declare a new pipeline.",
)
