"""Errors of OPTIMIZE on single tables: which table and file, what happened, and whether another try can succeed.

Spark and pyarrow report a missing or corrupt data file by many exceptions, which a retry cannot repair. They become a
ContractError that names the file. Errors of storages and concurrent writers keep their class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from deltaworks.control.error_redaction import redact_values
from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ContractError, DeltaworksError

#: A Parquet file in a message, as a URI or a path.
_DATA_FILE = re.compile(r"[^\s'\"`,;()\[\]<>]+\.parquet\b")
#: Messages about a file that the log names and that does not exist: of Spark, Hadoop, pyarrow, delta-rs and S3.
_MISSING = re.compile(
    r"FILE_NOT_EXIST|\bFileNotFound(?:Exception|Error)\b|No such file or directory|\bNoSuchKey\b"
    r"|Object at location \S+ not found|Path does not exist"
)
#: Messages about a file that is no complete Parquet file.
_UNREADABLE = re.compile(
    r"FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER|is not a Parquet file|\bParquetDecodingException\b|\bArrowInvalid\b"
    r"|Parquet magic bytes|Parquet file size is|Couldn't deserialize thrift|\bEOFException\b|ZSTD_|ZstdException"
    r"|Corrupt(?:ed)?\b|Invalid Parquet"
)
#: The message of an exception that caused another one, in a Java stack trace.
_CAUSED_BY = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+)(?:: ([^\n]*))?", re.MULTILINE)
_MAX_CAUSE_LENGTH = 300


def table_error(error: BaseException, *, table: str, key: str) -> DeltaworksError:
    """Returns the error of one table. Its message names the table and, if known, the data file and the innermost cause.

    Args:
        key: the table's key, below which its files are named.
    """
    converted = as_deltaworks_error(error)
    text = _text_of(error)
    if converted.condition == "JOB_FAILED":
        return _classify(error, text, table=table, key=key)
    if f"{table!r}" in converted.message or f" {table} " in f" {converted.message} ":
        return converted
    return type(converted)(
        converted.condition, f"{table}: {converted.message}", hint=converted.hint, retryable=converted.retryable
    )


def _classify(error: BaseException, text: str, *, table: str, key: str) -> DeltaworksError:
    cause, file = _innermost_cause(error, text), _data_file(text, key)
    where = f"{table}: data file {file}" if file else f"{table}: a data file"
    if _MISSING.search(text):
        return ContractError("DATA_FILE_MISSING", f"{where} does not exist: {cause}.")
    if _UNREADABLE.search(text):
        return ContractError("DATA_FILE_UNREADABLE", f"{where} cannot be read: {cause}.")
    return DeltaworksError("OPTIMIZE_FAILED", f"{table}: {cause}.", retryable=True)


def combined_error(errors: Sequence[DeltaworksError], *, tables: int) -> DeltaworksError:
    """Returns the error of a run: the error itself if only one table failed, otherwise one that lists all failed
    tables.

    A retry helps if the error of at least one table can pass: finished tables have nothing left to do.
    """
    if len(errors) == 1:
        return errors[0]
    listed = "; ".join(f"[{error.condition}] {error.message.rstrip('.')}" for error in errors)
    return DeltaworksError(
        "OPTIMIZE_FAILED",
        f"{len(errors)} of {tables} tables failed: {listed}.",
        hint=" ".join(dict.fromkeys(f"{error.condition}: {error.hint}" for error in errors if error.hint)),
        retryable=any(error.retryable for error in errors),
    )


def _text_of(error: BaseException) -> str:
    """Returns all messages of an error and its causes, with Java's stack traces, outermost first."""
    parts, link = [], error
    visited: set[int] = set()
    while id(link) not in visited:
        visited.add(id(link))
        stack = getattr(link, "_stackTrace", None) or getattr(link, "stackTrace", None) or ""
        parts.append(f"{type(link).__name__}: {link}\n{stack}")
        link = link.__cause__ or link
    return "\n".join(parts)


def _innermost_cause(error: BaseException, text: str) -> str:
    """Returns class and first line of the innermost cause, in Java or Python."""
    causes = _CAUSED_BY.findall(text)
    if causes:
        name, message = causes[-1]
    else:
        innermost = error
        while innermost.__cause__ is not None:
            innermost = innermost.__cause__
        name, message = type(innermost).__name__, next(iter(str(innermost).splitlines()), "")
    described = f"{name}: {message}" if message else name
    return redact_values(described)[:_MAX_CAUSE_LENGTH].strip().rstrip(".")


def _data_file(text: str, key: str) -> str:
    """Returns the first data file that a text names, relative to the table if it lies below `key`."""
    match = _DATA_FILE.search(text)
    if match is None:
        return ""
    path = unquote(match.group())
    return path.partition(f"{key}/")[2] or path
