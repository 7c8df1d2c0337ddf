"""Errors that Delta reports, as text, of a table read as a stream, as our own."""

from __future__ import annotations

import re

from deltaworks.errors import ContractError, DeltaworksError

#: A stream has come to a commit that replaces rows.
_REWRITTEN = re.compile(r"\bDELTA_SOURCE_(?:TABLE_IGNORE_CHANGES|IGNORE_DELETE)\b(?:[^\n]*?(at version \d+))?")
#: Commits are gone from the log, or another table is at the place of the one that was read.
_MISSING_COMMITS = re.compile(
    r"\bDELTA_(?:LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE|MISSING_FILES_UNEXPECTED_VERSION)\b"
    r"(?:[^\n]*?from version (\d+))?"
)
_NEXT_VERSION = re.compile(r'"reservoirVersion":\s*(\d+)')
_DIFFERENT_TABLE = re.compile(r"\bDIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE\b[^\n]*")
_MESSAGE_LENGTH = 1_000


def parse_error(text: str) -> DeltaworksError | None:
    """The error that the text of a foreign one stands for; None where it is not of a table read as a stream."""
    if rewritten := _REWRITTEN.search(text):
        return ContractError(
            "DELTA_SOURCE_REWRITTEN",
            "The table that is read has had rows rewritten, by a merge, an update, a delete or a reprocess in place"
            f"{' ' + rewritten.group(1) if rewritten.group(1) else ''}.",
            hint="Declare `skip_change_commits: true`, which leaves rewritten rows out; or, in a new generation, "
            "`change_feed: true` with the feed switched on, which distinguishes inserts from changes.",
        )
    if gone := _MISSING_COMMITS.search(text):
        following = gone if gone.group(1) else _NEXT_VERSION.search(text)
        return ContractError(
            "SOURCE_EXPIRED",
            "The log of the table that is read no longer has the version that comes next"
            f"{', ' + following.group(1) if following else ''}.",
            hint="Start the pipeline over, which reads the table as it is; keep its log for longer.",
        )
    if another := _DIFFERENT_TABLE.search(text):
        return ContractError(
            "DELTA_SOURCE_REPLACED",
            f"The table that was read is gone, and another one is in its place: {another.group()[:_MESSAGE_LENGTH]}",
            hint="Read it from its beginning: `deltaworks pipelines start-over`; or put the former table back.",
        )
    return None
