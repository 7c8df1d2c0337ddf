"""Maps errors of sources that are read through Spark to Deltaworks errors, by the text of the foreign exception.

Such an error is raised in the JVM and reaches a job as text, wherever the job happens to wait, so it is mapped where
all errors of libraries are: in `control.job`.
"""

from __future__ import annotations

import re

from deltaworks.errors import ConfigError, ContractError, DeltaworksError

#: A stream met a commit that replaces rows.
_REWRITTEN = re.compile(r"\bDELTA_SOURCE_(?:TABLE_IGNORE_CHANGES|IGNORE_DELETE)\b(?:[^\n]*?(at version \d+))?")
#: Commits are missing from the log, or another table replaced the one that was read.
_MISSING_COMMITS = re.compile(
    r"\bDELTA_(?:LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE|MISSING_FILES_UNEXPECTED_VERSION)\b"
    r"(?:[^\n]*?from version (\d+))?"
)
_NEXT_VERSION = re.compile(r'"reservoirVersion":\s*(\d+)')
_DIFFERENT_TABLE = re.compile(r"\bDIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE\b[^\n]*")
#: Messages of Kafka's clients and Spark's connector for expired records and rejected logins.
_OUT_OF_RANGE = re.compile(r"\bOffsetOutOfRangeException\b[^\n]*")
_EXPIRED = re.compile(r"Some data may have been lost because they are not available[^\n]*")
_LOGIN_REFUSED = re.compile(r"\bSaslAuthenticationException\b[^\n]*|\b(?:Topic|Group)AuthorizationException\b[^\n]*")
#: Java's messages for certificates that one side rejects.
_CERTIFICATE_REFUSED = re.compile(r"\bSslAuthenticationException\b[^\n]*|\bSSLHandshakeException\b[^\n]*")
_CERTIFICATE_CAUSE = re.compile(
    r"PKIX path[^\n]*|No subject alternative[^\n]*|Received fatal alert[^\n]*"
    r"|\bCertificate(?:Expired|NotYetValid)\w+[^\n]*"
)
_STORE_UNREADABLE = re.compile(r"Failed to load (?:PEM )?SSL keystore[^\n]*|Invalid PEM keystore configs[^\n]*")
_MESSAGE_LENGTH = 1_000


def source_error(text: str) -> DeltaworksError | None:
    """Returns the error for the text of a foreign exception; None if it does not concern a source."""
    return kafka_error(text) or delta_error(text)


def kafka_error(text: str) -> DeltaworksError | None:
    """Returns the error for messages of Kafka's Java clients and Spark's connector; None if it is not Kafka's."""
    if expired := _OUT_OF_RANGE.search(text) or _EXPIRED.search(text):
        return ContractError(
            "SOURCE_EXPIRED",
            f"Records expired before any batch read them: {expired.group()[:_MESSAGE_LENGTH]}",
        )
    if refused := _CERTIFICATE_REFUSED.search(text) or _STORE_UNREADABLE.search(text):
        cause = _CERTIFICATE_CAUSE.search(text)
        detail = refused.group() if cause is None else f"{refused.group()}: {cause.group()}"
        return ConfigError(
            "SOURCE_CERTIFICATE_REFUSED",
            f"Client or brokers reject the other side's certificate: {detail[:_MESSAGE_LENGTH]}",
        )
    if refused := _LOGIN_REFUSED.search(text):
        return ConfigError(
            "SOURCE_LOGIN_REFUSED",
            f"The brokers reject the login: {refused.group()[:_MESSAGE_LENGTH]}",
        )
    return None


def delta_error(text: str) -> DeltaworksError | None:
    """Returns the error for messages of a stream that reads a Delta table; None if it does not concern one."""
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
