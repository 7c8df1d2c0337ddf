"""Checks a pipeline's `privacy` section against its other sections.

Rejects specs under which a subject could not be erased: personal values in file paths, streaming state or log
statistics, and files that VACUUM retains beyond the deadline. Also rejects columns that no redacted value fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deltaworks.specs.base import KeyPath, Problem, path_names, selects_elements, suggest_name
from deltaworks.specs.pipeline_sections import PipelineSections
from deltaworks.specs.privacy import TOKEN_ACTIONS, PrivacySpec, PrivateFieldSpec
from deltaworks.specs.types import Array, ColumnType, Map, Struct, parse_type

if TYPE_CHECKING:
    from deltaworks.specs.table import ColumnSpec, TableSpec

#: Days between VACUUM and the deadline, reserved for verification and retries.
RETENTION_MARGIN_DAYS = 2
_MAX_EXPIRY_MINUTES = 1440


def privacy_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields conflicts between `privacy` and the other sections, and table keys that need a `privacy` section."""
    privacy = pipeline.privacy
    yield from _table_key_problems(pipeline)
    if privacy is None:
        return
    yield from _routing_problems(pipeline, privacy)
    for index, table in enumerate(pipeline.tables):
        yield from ((("tables", index, *problem[0]), *problem[1:]) for problem in _column_problems(table, privacy))
        yield from ((("tables", index, *problem[0]), *problem[1:]) for problem in _layout_problems(table, privacy))
    yield from _live_problems(pipeline, privacy)
    yield from _deadline_problems(pipeline, privacy)
    yield from _conflict_problems(pipeline, privacy)


def _table_key_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    for index, table in enumerate(pipeline.tables):
        if table.erase == "keep" and not table.erase_reason:
            text = (
                "rows of an erased subject are kept: give the reason, such as erase_reason: invoices are kept "
                "for ten years"
            )
            yield ("tables", index, "erase"), text
        if table.erase == "rows" and table.erase_reason:
            yield ("tables", index, "erase_reason"), "it requires `erase: keep`; write that, or remove the reason"
        if pipeline.privacy is None and table.erase == "keep":
            yield ("tables", index, "erase"), "there is no erasure without `privacy`; declare it"
        if table.retention_days is not None and "event_date" not in table.partition_by:
            text = "rows are deleted by date: partition the table by event_date, or remove it"
            yield ("tables", index, "retention_days"), text


def _column_problems(table: TableSpec, privacy: PrivacySpec) -> Iterator[Problem]:
    """Yields columns of personal data whose type cannot hold the redacted value."""
    for position, column in enumerate(table.columns):
        yield from _nested_field_problems(position, column, privacy)
        field = privacy.field_for(column.path)
        if field is None:
            continue
        key_path: KeyPath = ("columns", position)
        is_field_itself = path_names(field.path) == path_names(column.path) and not selects_elements(field.path)
        if field.action == "drop" and column.required:
            yield (
                (*key_path, "required"),
                f"{field.path!r} is dropped: the column is always null, and every row would be quarantined",
            )
        elif is_field_itself and field.action != "drop" and column.type != "string":
            replacement = "a token" if field.action in TOKEN_ACTIONS else "an address"
            text = (
                f"{column.name!r} is {column.type}, and {column.path!r} becomes {replacement}, a string: every "
                "event would be quarantined; declare type: string"
            )
            yield (*key_path, "type"), text
        elif not is_field_itself and field.action != "drop" and not selects_elements(field.path):
            text = f"{field.path!r} is replaced by a single value; use the path {field.path!r}"
            yield (*key_path, "path"), text


def _nested_field_problems(position: int, column: ColumnSpec, privacy: PrivacySpec) -> Iterator[Problem]:
    """Yields struct columns with a field of personal data whose type cannot hold the redacted value."""
    for field in privacy.fields:
        names, parents = path_names(field.path), path_names(column.path)
        if field.action == "drop" or len(names) <= len(parents) or names[: len(parents)] != parents:
            continue
        kind = _nested_type(parse_type(column.type), names[len(parents) :])
        if kind is not None and str(kind) != "string":
            replacement = "a token" if field.action in TOKEN_ACTIONS else "an address"
            text = f"{field.path!r} becomes {replacement}, a string, but its type is {kind}; declare string"
            yield ("columns", position, "type"), text


def _nested_type(kind: ColumnType, names: Sequence[str]) -> ColumnType | None:
    """Returns the type of a nested field; None if there is no such field."""
    while isinstance(kind, Array):
        kind = kind.element
    if not names:
        return kind
    if isinstance(kind, Map):
        return _nested_type(kind.value, names[1:])
    fields = dict(kind.fields) if isinstance(kind, Struct) else {}
    return _nested_type(fields[names[0]], names[1:]) if names[0] in fields else None


def _layout_problems(table: TableSpec, privacy: PrivacySpec) -> Iterator[Problem]:
    """Yields personal columns in file paths or in statistics of the Delta log."""
    personal = {
        column.name: field for column in table.columns if (field := _personal_field(column, privacy)) is not None
    }
    for key in ("partition_by", "cluster_by"):
        for position, name in enumerate(getattr(table, key)):
            if name in personal:
                text = (
                    f"{name!r} is personal ({personal[name].path}): file paths and log of the table would contain "
                    "its values, which cannot be erased there; choose another column"
                )
                yield (key, position), text
    for position, name in enumerate(table.zorder_by):
        if name in personal and personal[name].action not in TOKEN_ACTIONS:
            text = (
                f"{name!r} is personal ({personal[name].path}) and not a token: the log would contain its min and "
                "max values; use tokens or other columns"
            )
            yield ("zorder_by", position), text


def _personal_field(column: ColumnSpec, privacy: PrivacySpec) -> PrivateFieldSpec | None:
    """Returns the private field that a column reads; None for other columns and for dropped fields."""
    field = privacy.field_for(column.path)
    return None if field is None or field.action == "drop" else field


def _live_problems(pipeline: PipelineSections, privacy: PrivacySpec) -> Iterator[Problem]:
    """Yields live tables that group or key by personal data, because streaming state cannot be erased."""
    for index, live in enumerate(pipeline.live):
        columns = {
            column.name: field
            for table in pipeline.tables
            if table.name == live.reads
            for column in table.columns
            if (field := _personal_field(column, privacy)) is not None
        }
        # `latest` tables that expire within a day may contain tokens.
        expires_within_a_day = (
            live.expire_after_minutes is not None and live.expire_after_minutes <= _MAX_EXPIRY_MINUTES
        )
        if expires_within_a_day:
            columns = {name: field for name, field in columns.items() if field.action not in TOKEN_ACTIONS}
        for key in ("group_by", "key", "keep"):
            for position, name in enumerate(getattr(live, key)):
                if name in columns:
                    text = (
                        f"{name!r} is personal ({columns[name].path}), and a live table's state cannot be erased; "
                        "use a gold table"
                    )
                    yield ("live", index, key, position), text


def _deadline_problems(pipeline: PipelineSections, privacy: PrivacySpec) -> Iterator[Problem]:
    """Yields maintenance settings with which files remain longer than the erasure deadline."""
    maintenance, erase = pipeline.maintenance, privacy.erase
    if maintenance.vacuum_dry_run:
        text = "files of erased rows would never be deleted: with `privacy`, write vacuum_dry_run: false"
        yield ("maintenance", "vacuum_dry_run"), text
    days = maintenance.file_retention_hours / 24
    if erase.purge_within_days + days + RETENTION_MARGIN_DAYS > erase.deadline_days:
        key = "time_travel_hours" if maintenance.time_travel_hours > maintenance.vacuum_retention_hours else ""
        key = key or "vacuum_retention_hours"
        most = max(0, int(24 * (erase.deadline_days - RETENTION_MARGIN_DAYS - erase.purge_within_days)))
        text = (
            f"rows purged on day {erase.purge_within_days} remain in files until day "
            f"{erase.purge_within_days + days:g}, "
            f"and {RETENTION_MARGIN_DAYS} days are reserved before the deadline on day {erase.deadline_days}: "
            f"write at most {key}: {most}, or fewer purge_within_days"
        )
        yield ("maintenance", key), text, (("privacy", "erase"),)


def _routing_problems(pipeline: PipelineSections, privacy: PrivacySpec) -> Iterator[Problem]:
    """Yields personal fields that decide an event's name, time or table: they are redacted before that decision."""
    event = pipeline.event
    key_paths: list[tuple[KeyPath, str]] = []
    if event.name.path is not None:
        key_paths.append((("event", "name", "path"), event.name.path))
    for index, path in enumerate(event.time.path):
        key_paths.append((("event", "time", "path", *([index] if len(event.time.path) > 1 else [])), path))
    for index, table in enumerate(pipeline.tables):
        key_paths += [(("tables", index, "when", path), path) for path in table.when]
    for key_path, path in key_paths:
        field = privacy.field_for(path)
        if field is not None:
            text = (
                f"{path!r} is personal: name, time and routing of an event need original values; choose another field"
            )
            yield key_path, text
    for index, path in enumerate(event.id):
        field = privacy.field_for(path)
        if field is not None and field.action not in TOKEN_ACTIONS:
            id_path: KeyPath = ("event", "id", *([index] if len(event.id) > 1 else []))
            text = f"{path!r} does not identify events after redaction; choose another field, or make it a token"
            yield id_path, text


def _conflict_problems(pipeline: PipelineSections, privacy: PrivacySpec) -> Iterator[Problem]:
    """Yields sections that store unredacted data or declare the same fields."""
    if pipeline.archive is not None:
        yield ("archive",), "an archive keeps original payloads with personal data; remove one of the two"
    for index, private in enumerate(pipeline.private):
        if privacy.field_for(private.path) is not None:
            text = f"{private.path!r} is also declared in `privacy`, which takes precedence; remove it here"
            yield ("private", index, "path"), text
    for index, lookup in enumerate(pipeline.enrich):
        field = privacy.field_for(lookup.path)
        if field is not None and field.action != "truncate_ip":
            text = f"{lookup.path!r} is redacted before the look-up; use `private` instead, which is applied after it"
            yield ("enrich", index, "path"), text
    paths = [column.path for table in pipeline.tables for column in table.columns]
    for index, field in enumerate(privacy.fields):
        if field.path.startswith("_record") or field.path.startswith("_partition"):
            text = f"{field.path!r} is a field of the source, not of events; {suggest_name(field.path, paths)}"
            yield ("privacy", "fields", index, "path"), text
