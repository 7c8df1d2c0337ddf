"""Maps the text of Delta's streaming errors to Deltaworks errors."""

from __future__ import annotations

import re

from deltaworks.errors import ContractError, DeltaworksError

#: A stream met a commit that replaces rows.
_REWRITTEN = re.compile(r"\bDELTA_SOURCE_(?:TABLE_IGNORE_CHANGES|IGNORE_DELETE)\b(?:[^\n]*?(at version \d+))?")
#: Commits are missing from the log, or another table replaced the one that was read.
_MISSING_COMMITS = re.compile(
    r"\bDELTA_(?:LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE|MISSING_FILES_UNEXPECTED_VERSION)\b"
    r"(?:[^\n]*?from version (\d+))?"
)
_NEXT_VERSION = re.compile(r'"reservoirVersion":\s*(\d+)')
_DIFFERENT_TABLE = re.compile(r"\bDIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE\b[^\n]*")
_MESSAGE_LENGTH = 1_000


def parse_error(text: str) -> DeltaworksError | None:
    """Returns the error for the text of a foreign exception; None if it does not concern a Delta source."""
    if rewritten := _REWRITTEN.search(text):
        return ContractError(
            "DELTA_SOURCE_REWRITTEN",
            "A merge, update, delete or reprocess rewrote rows of the source table"
            f"{' ' + rewritten.group(1) if rewritten.group(1) else ''}.",
            hint=(
                "Declare `skip_change_commits: true` to skip rewritten rows. Or, in a new generation, declare "
                "`change_feed: true` and enable the feed, which distinguishes inserts from changes."
            ),
        )
    if missing := _MISSING_COMMITS.search(text):
        next_version = missing if missing.group(1) else _NEXT_VERSION.search(text)
        return ContractError(
            "SOURCE_EXPIRED",
            "The source table's log no longer has the next version"
            f"{', ' + next_version.group(1) if next_version else ''}.",
            hint="Start the pipeline over to read the current table. Increase the table's log retention.",
        )
    if different := _DIFFERENT_TABLE.search(text):
        return ContractError(
            "DELTA_SOURCE_REPLACED",
            f"The source table was replaced by another table: {different.group()[:_MESSAGE_LENGTH]}",
        )
    return None
