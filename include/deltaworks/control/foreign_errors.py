"""Reads the errors of Spark, DuckDB, pyarrow and delta-rs: the innermost cause, and the data file that it names; and
removes data values from their messages.

A missing or damaged data file is reported by many exceptions of many libraries, which a retry cannot repair.
`data_file_error` makes one ContractError of them, which names the table, the file and the command that repairs it.
`deltaworks.control.job` calls it for every error of a job, a stream or a command; readers that wrap the errors of
their query call it first.

Errors go to logs, heartbeats, alerts and records of held tables, which more people read than the tables. Our own errors
name a path and a type; libraries quote the value that failed to convert, each with its own wording.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from deltaworks.errors import ContractError, DeltaworksError

REDACTED_VALUE = "(a value)"
#: Text before and after a quoted value. Libraries do not escape quotes in values, so only the text after the value
#: shows where it ends.
_VALUE_CONTEXTS = (
    # Spark: casts, overflows, and texts that are not times.
    (r"\bThe value ", r" of the type "),
    (r"\bText ", r" could not be parsed"),
    # Arrow.
    (r"\bCould not convert ", r" with type "),
    (r"\b[Ff]ailed to parse string: ", r" as a scalar of type "),
    (r"\bThe string ", r" is not a valid "),
    (r"\b(?:Integer|Decimal|Float) value ", r" (?:not in range|was truncated|is outside|does not fit|out of)"),
    # DuckDB.
    (r"\bCould not convert string ", r" to [A-Z]"),
    (r"\bfield format: ", r", expected format"),
    (r"\bCould not parse string ", r"\n\s*\^\n"),
    (r"\bwith value ", r" (?:can't be cast|because)"),
)
_VALUE_PATTERNS = (
    *(re.compile(f"(?P<before>{before}).+(?={after})", re.DOTALL) for before, after in _VALUE_CONTEXTS),
    # Delta, when a row violates a CHECK constraint: one line per column.
    re.compile(r"(?P<before>violated by row with values:)(?:\s*-\s[^\n]*)+"),
    # Python, when the value ends the message.
    re.compile(r"(?P<before>\binvalid literal for \w+\(\) with base \d+: ).+", re.DOTALL),
    re.compile(r"(?P<before>\bcould not convert string to \w+: ).+", re.DOTALL),
    re.compile(r"(?P<before>\bInvalid isoformat string: ).+", re.DOTALL),
)


def redact_values(text: str) -> str:
    """Replaces quoted data values in an error message; unknown messages are returned unchanged."""
    for pattern in _VALUE_PATTERNS:
        text = pattern.sub(lambda match: f"{match['before']}{REDACTED_VALUE}", text)
    return text


def redacted_traceback(error: BaseException) -> str:
    """Formats the traceback of an error and its causes as Python does, without data values."""
    text = "".join(traceback.format_exception(error))
    links = [error]
    for link in links:
        links += [other for other in (link.__cause__, link.__context__) if other is not None and other not in links]
    for link in links:
        message = str(link)
        if (redacted := redact_values(message)) != message:
            text = text.replace(message, redacted)
    return text


#: The conditions of `data_file_error`.
DATA_FILE_CONDITIONS: Final = ("DATA_FILE_MISSING", "DATA_FILE_UNREADABLE")
_LOST, _DAMAGED = DATA_FILE_CONDITIONS
#: A data file or a file of deletion vectors in a message, as a URI or a path.
_DATA_FILE = re.compile(r"[^\s'\"`,;()\[\]<>]+\.parquet\b|[^\s'\"`,;()\[\]<>]*deletion_vector_[0-9a-f-]{36}\.bin\b")
#: The key of a data file: a table of a pipeline, or of its control folder. The root may have folders of these names.
_KEY = re.compile(r"(?:^|.*/)(tables|control/pipelines)/([^/=]+)/([^/=]+)/(.+)")
#: Messages about a file that the log names and that does not exist: of Spark, Hadoop, pyarrow, delta-rs and S3.
_MISSING = re.compile(
    r"FILE_NOT_EXIST|\bFileNotFound(?:Exception|Error)\b|No such file or directory|\bNoSuchKey\b|\bNO_SUCH_KEY\b"
    r"|Object at location \S+ not found|Path does not exist"
)
#: Messages about a damaged footer, which a check of footers finds.
_BAD_FOOTER = re.compile(
    r"Parquet magic bytes|Parquet file size is|is not a Parquet file|Invalid Parquet file|[Cc]orrupt(?:ed)? footer"
    r"|CANNOT_READ_FILE_FOOTER|Could not read footer|footer is too large|Requested range was invalid|InvalidRange"
    r"|Failed to fetch metadata for file|Could not open Parquet input source|expected magic number at tail"
)
#: Messages about damaged contents of a file whose footer may be intact.
_BAD_CONTENT = re.compile(
    r"FAILED_READ_FILE|\bParquetDecodingException\b|Couldn't deserialize thrift|Deserializing page header failed"
    r"|Parquet argument error|can not read class org\.apache\.parquet|\bEOFException\b|\bZSTD\b|ZSTD_|ZstdException"
    r"|\bCorrupt(?:ed)?\b|Unexpected end of stream|Page (?:was smaller|size)|Parquet error: |\bis a directory"
)
#: Messages about a file that is intact but that this process must not read, or reads as another type.
_INTACT = re.compile(
    r"AccessDenied|ACCESS_DENIED|[Pp]ermission denied|\bForbidden\b|PARQUET_COLUMN_DATA_TYPE_MISMATCH"
    r"|UNSUPPORTED_FILE_SYSTEM|OutOfMemoryError|\bInterruptedIOException\b|\bClosedByInterruptException\b|\bTaskKilled"
)
#: An exception that caused another one, in a Java stack trace, up to its first frame.
_CAUSED_BY = re.compile(
    r"^Caused by: ([^\n]*(?:\n(?!\s+at |\s*\.\.\. |Caused by: |\s*Suppressed: )[^\n]*)*)", re.MULTILINE
)
#: The first exception of a Java stack trace, as py4j writes it.
_JAVA_ERROR = re.compile(r"An error occurred while calling [^\n]*\n: ([^\n]+)")
#: A condition of Spark or Delta, such as `[FAILED_READ_FILE.FILE_NOT_EXIST]`.
_ERROR_CLASS = re.compile(r"\[[A-Z][A-Z0-9_]{3,}(?:\.[A-Z0-9_]+)?\]")
#: The error line of a Python traceback, which Spark reports as text.
_PYTHON_ERROR = re.compile(r"^\s*(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
#: Java's exceptions that only say where another one was met.
_WRAPPERS = frozenset({"ExecutionException", "CompletionException", "InvocationTargetException"})
_MAX_CAUSE_LENGTH = 1_000


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and its explicit causes (`raise … from`), outermost first. Ignores errors that merely preceded
    it.
    """
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        yield link
        link = link.__cause__


def error_text(error: BaseException) -> str:
    """Returns all messages of an error and its causes, with Java's stack traces, outermost first."""
    return "\n".join(map(_text_of, cause_chain(error)))


def _text_of(link: BaseException) -> str:
    # A captured JVM error shows only its description; its causes are in its stack trace.
    stack = getattr(link, "_stackTrace", None) or getattr(link, "stackTrace", None) or ""
    return f"{type(link).__name__}: {link}\n{stack}"


def describe_cause(error: BaseException, *, is_innermost: bool = False) -> str:
    """Returns class and message of an error on one line, without data values.

    For an error of the JVM these are those of its innermost cause with a condition of Spark or Delta, otherwise of the
    innermost one. A Python traceback within it is reduced to its error line. An error of Python is followed by its
    innermost cause.

    Args:
        is_innermost: return the innermost cause, also if an outer one has a condition.
    """
    chain = list(cause_chain(error))
    causes = [cause for link in chain for cause in _java_causes(_text_of(link))]
    if not causes:
        links = dict.fromkeys((chain[-1],) if is_innermost else (chain[0], chain[-1]))
        parts = [(type(link).__name__, str(link)) for link in links]
        return "; caused by ".join(_one_line(name, message) for name, message in parts)[:_MAX_CAUSE_LENGTH]
    classified = [] if is_innermost else [cause for cause in causes if _ERROR_CLASS.search(cause[1])]
    name, message = (classified or [cause for cause in causes if cause[0] not in _WRAPPERS] or causes)[-1]
    python = _PYTHON_ERROR.findall(message) if "Traceback (most recent call last)" in message else []
    return _one_line(*(python[-1] if python else (name, message)))[:_MAX_CAUSE_LENGTH]


def _one_line(name: str, message: str) -> str:
    # Before the message is cut: the text after a value, which shows where it ends, may be on another line.
    line = _first_line(redact_values(message))
    return f"{name}: {line}" if name and line else name or line


def _java_causes(text: str) -> Iterator[tuple[str, str]]:
    """Yields class and message of the exceptions in a Java stack trace, outermost first."""
    outermost = _JAVA_ERROR.search(text)
    for cause in (*([outermost[1]] if outermost else []), *_CAUSED_BY.findall(text)):
        name, _, message = cause.partition(": ")
        if " " in name:
            name, message = "", cause
        yield name.rpartition(".")[2].rpartition("$")[2], message


def _first_line(message: str) -> str:
    """Returns the line of a message with a condition, otherwise its first one, from the condition on."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    line = next((line for line in lines if _ERROR_CLASS.search(line)), lines[0] if lines else "")
    condition = _ERROR_CLASS.search(line)
    return line[condition.start() :] if condition else line


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of the lake: its folder, pipeline and table, and the path below the table's folder."""

    folder: str
    pipeline: str
    table: str
    path: str


def data_file_in(text: str) -> DataFile | None:
    """Returns the last data file of the lake that a text names; None if it names none, or only files of others."""
    for path in reversed(_DATA_FILE.findall(text)):
        key = _KEY.fullmatch(unquote(path))
        if key is not None:
            return DataFile(*key.groups())
    return None


def data_file_error(error: BaseException, *, tables: Sequence[str] = (), key: str = "") -> ContractError | None:
    """Returns the error of a data file that is missing or damaged; None for other errors.

    Args:
        tables: the tables that were read, as `pipeline.table`, for errors that name no file of the lake.
        key: the key of the file that was read, for errors that name none.
    """
    own = next((link for link in cause_chain(error) if isinstance(link, DeltaworksError)), None)
    if own is not None:
        return own if isinstance(own, ContractError) and own.condition in DATA_FILE_CONDITIONS else None
    text = error_text(error)
    file = data_file_in(text) or data_file_in(key)
    if (file is None and not tables) or _INTACT.search(text):
        return None
    bad_footer, bad_content = _BAD_FOOTER.search(text), _BAD_CONTENT.search(text)
    # Readers of a truncated file ask for a range that does not exist, and delta-rs prefixes each of its errors.
    if _MISSING.search(text):
        condition, problem = _LOST, "is missing."
    elif bad_footer or bad_content:
        cause = describe_cause(error, is_innermost=True).rstrip(".")
        condition, problem = _DAMAGED, f"cannot be read: {cause}."
    else:
        return None
    relative = _DATA_FILE.search(text)
    if file is None and relative is None and condition == _LOST:
        return None  # some other file
    names = " or ".join(tables) if file is None else f"{file.pipeline}.{file.table}"
    path = file.path if file is not None else "" if relative is None else unquote(relative.group())
    full = condition == _DAMAGED and not bad_footer
    return ContractError(
        condition,
        f"{names}: {f'data file {path}' if path else 'a data file'} {problem}",
        hint=_repair_hint(names, condition, full=full, is_control=file is not None and file.folder != "tables"),
    )


def _repair_hint(names: str, condition: str, *, full: bool, is_control: bool) -> str:
    """Returns the next step for a damaged file of a table.

    Args:
        full: whether only reading all rows shows the damage.
        is_control: whether the table is one of the pipeline's control folder.
    """
    if is_control:
        return f"`deltaworks tables check {names.partition('.')[0]}` names the command that repairs it."
    words = "PIPELINE TABLE" if " or " in names else names.replace(".", " ")
    flag = " --full" if full else ""
    vacuumed = " If it finds no damage, VACUUM has deleted a file of an old version." if condition == _LOST else ""
    return (
        f"Run `deltaworks recover files {words}{flag}`, which reads the rows again from their objects.{vacuumed} For a "
        f"table computed from others, `deltaworks tables check {words} {flag.strip() or '--deep'}` names the command."
    )
