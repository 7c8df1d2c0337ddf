"""Reads requests from a CSV file with a header, one request per row.

Columns: `ts` (seconds since 1970 or ISO 8601), `old_id`, `new_id`, and optionally `org_id`, `seq`, `commit`, `op`
(default: rename) and `fields` (a JSON object, for an update). Rows of one commit are simultaneous; commits with the
same time are ordered by their smallest `seq`, else by their order in the file. Without commits, rows with the same time
are simultaneous.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING

from deltaworks.errors import ConfigError
from deltaworks.mutations.local_resolve import RequestRow
from deltaworks.specs.mutation import MOVE_OPERATIONS, RENAME_OPERATIONS, UPDATE

if TYPE_CHECKING:
    import pyarrow as pa

_REQUIRED_COLUMNS = ("ts", "old_id", "new_id")
_OPTIONAL_COLUMNS = ("org_id", "seq", "commit", "op", "fields")
_OPERATIONS = (*MOVE_OPERATIONS, UPDATE)
_MAX_REPORTED_ERRORS = 10
_HINT = (
    "The file is CSV with the columns ts, old_id, new_id and optionally org_id, seq, commit, op, fields; "
    "docs/reference/mutations.md describes them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFile:
    """The requests of a file.

    The time of a request is the ordinal of its moment in the file, so that commits with the same time stay separate.
    `original_times` has the time of each moment as written in the file, `ignored_columns` the unread columns.
    """

    requests: tuple[RequestRow, ...]
    original_times: tuple[str, ...]
    ignored_columns: tuple[str, ...]

    def original_time(self, moment: int | datetime | None) -> str | None:
        """Returns the time as written in the file for a time of resolved intervals."""
        if moment is None:
            return None
        return self.original_times[moment if isinstance(moment, int) else _ordinal(moment)]

    def to_arrow(self) -> pa.Table:
        """Returns the requests as a table, with the ordinal of a moment as microseconds since 1970."""
        # Imported here because the rows of a small file need no Arrow, whose import takes longer than resolving them.
        import pyarrow as pa

        texts = {name: pa.string() for name in ("org_id", "op", "id", "new_id")}
        fields, time = pa.map_(pa.string(), pa.string()), pa.timestamp("us", tz="UTC")
        schema = pa.schema([*texts.items(), ("fields", fields), ("seq", pa.int64()), ("time", time)])
        rows = [
            {name: getattr(row, name) for name in schema.names}
            | {"fields": None if row.fields is None else list(row.fields.items())}
            for row in self.requests
        ]
        return pa.Table.from_pylist(rows, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One row of the file. `at_seconds` is its time since 1970. Without a `seq` column, `seq` is the line number."""

    line: int
    at_seconds: Decimal
    ts: str
    org_id: str
    commit: str
    seq: int | None
    op: str
    old_id: str
    new_id: str | None
    fields: Mapping[str, str | None] | None


def read_request_file(path: Path) -> RequestFile:
    """Reads the requests of a file.

    Raises:
        ConfigError: MUTATION_FILE_UNREADABLE, MUTATION_FILE_INVALID (the first ten errors, with line numbers).
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            columns = _parse_header(path, next(reader, []))
            requests, errors = _parse_rows(reader, columns)
    except OSError as error:
        raise ConfigError(
            "MUTATION_FILE_UNREADABLE", f"{path} cannot be read: {error.strerror}.", hint="Give the path of a CSV file."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            "MUTATION_FILE_UNREADABLE", f"{path} is no UTF-8 text: {error.reason}.", hint="Save it as UTF-8."
        ) from error
    errors += _find_split_commits(requests)
    if errors:
        raise _invalid_file(path, sorted(errors))
    expected = {*_REQUIRED_COLUMNS, *_OPTIONAL_COLUMNS}
    moments = _moment_ordinals(requests)
    return RequestFile(
        requests=tuple(_rows(requests, moments)),
        original_times=_original_times(requests, moments),
        ignored_columns=tuple(name for name in columns if name not in expected),
    )


def _parse_header(path: Path, header: list[str]) -> list[str]:
    names = [name.strip() for name in header]
    missing = [name for name in _REQUIRED_COLUMNS if name not in names]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if missing:
        raise _invalid_file(path, [(1, f"there is no column {', '.join(missing)}")])
    if duplicates:
        raise _invalid_file(path, [(1, f"column {', '.join(duplicates)} is there more than once")])
    return names


def _parse_rows(reader: Iterator[list[str]], columns: list[str]) -> tuple[list[_Request], list[tuple[int, str]]]:
    requests: list[_Request] = []
    errors: list[tuple[int, str]] = []
    line = 2
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            # After invalid quoting the remaining rows cannot be separated.
            return requests, [*errors, (line, f"this is no CSV: {error}")]
        if cells is None:
            return requests, errors
        try:
            if cells:
                requests.append(_parse_request(line, columns, cells))
        except ValueError as error:
            errors.append((line, str(error)))
        line = reader.line_num + 1  # type: ignore[attr-defined]


def _parse_request(line: int, columns: list[str], cells: list[str]) -> _Request:
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} values for {len(columns)} columns")
    row = dict(zip(columns, cells, strict=True))
    op = row.get("op", "").strip() or "rename"
    if op not in _OPERATIONS:
        raise ValueError(f"op {op!r} is none of {', '.join(_OPERATIONS)}")
    if not row["old_id"]:
        raise ValueError("old_id is empty")
    if (op in RENAME_OPERATIONS) != bool(row["new_id"]):
        raise ValueError("new_id is empty" if op in RENAME_OPERATIONS else f"{op} takes no new_id")
    return _Request(
        line=line,
        at_seconds=_parse_seconds(row["ts"].strip()),
        ts=row["ts"].strip(),
        org_id=row.get("org_id", ""),
        commit=row.get("commit", "").strip(),
        seq=_parse_seq(row["seq"].strip()) if "seq" in row else line,
        op=op,
        old_id=row["old_id"],
        new_id=row["new_id"] or None,
        fields=_parse_fields(op, row.get("fields", "").strip()),
    )


def _parse_seconds(text: str) -> Decimal:
    """Parses a time to seconds since 1970; a time without an offset is UTC."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"ts {text!r} is neither a number of seconds nor ISO 8601") from None
        elapsed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return Decimal(elapsed.days * 86_400 + elapsed.seconds) + Decimal(elapsed.microseconds) / 1_000_000
    if not number.is_finite():
        raise ValueError(f"ts {text!r} is no time")
    return number


def _parse_seq(text: str) -> int | None:
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"seq {text!r} is no whole number") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"seq {text!r} does not fit 64 bits")
    return number


def _parse_fields(op: str, text: str) -> Mapping[str, str | None] | None:
    if op != UPDATE:
        if text:
            raise ValueError(f"{op} takes no fields")
        return None
    try:
        fields = json.loads(text or "null")
    except ValueError as error:
        raise ValueError(f"fields is no JSON: {error}") from None
    if not isinstance(fields, dict) or not fields:
        raise ValueError('an update sets fields, such as {"stage": "won"}')
    if not all(value is None or isinstance(value, str) for value in fields.values()):
        raise ValueError("a value of fields is neither text nor null")
    return fields


def _find_split_commits(requests: list[_Request]) -> list[tuple[int, str]]:
    """Returns an error for each row whose time differs from its commit's other rows."""
    first: dict[tuple[str, str], _Request] = {}
    errors = []
    for request in requests:
        first_request = first.setdefault((request.org_id, request.commit), request)
        if request.commit and first_request.at_seconds != request.at_seconds:
            errors.append(
                (
                    request.line,
                    f"commit {request.commit} has another ts on line {first_request.line}: {first_request.ts}",
                )
            )
    return errors


def _moment_ordinals(requests: list[_Request]) -> dict[tuple[Decimal, str, str], int]:
    """Returns the ordinal of each moment: by time, then smallest sequence, then order in the file."""
    first: dict[tuple[Decimal, str, str], tuple[bool, int, int]] = {}
    for request in requests:
        key, order = _moment(request), (request.seq is not None, request.seq or 0, request.line)
        first[key] = min(first.get(key, order), order)
    return {key: number for number, key in enumerate(sorted(first, key=lambda key: (key[0], first[key])))}


def _moment(request: _Request) -> tuple[Decimal, str, str]:
    return request.at_seconds, request.org_id, request.commit


def _original_times(requests: list[_Request], moments: Mapping[tuple[Decimal, str, str], int]) -> tuple[str, ...]:
    texts = dict.fromkeys(range(len(moments)), "")
    for request in reversed(requests):
        texts[moments[_moment(request)]] = request.ts
    return tuple(texts.values())


def _rows(requests: list[_Request], moments: Mapping[tuple[Decimal, str, str], int]) -> Iterator[RequestRow]:
    for request in requests:
        yield RequestRow(
            org_id=request.org_id,
            op=request.op,
            id=request.old_id,
            new_id=request.new_id,
            fields=request.fields,
            seq=request.seq,
            time=moments[_moment(request)],
        )


def _ordinal(moment: datetime) -> int:
    elapsed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


def _invalid_file(path: Path, errors: list[tuple[int, str]]) -> ConfigError:
    details = "; ".join(f"line {line}: {problem}" for line, problem in errors[:_MAX_REPORTED_ERRORS])
    more = f"; and {len(errors) - _MAX_REPORTED_ERRORS} more" if len(errors) > _MAX_REPORTED_ERRORS else ""
    return ConfigError("MUTATION_FILE_INVALID", f"{path}: {details}{more}.", hint=_HINT)
