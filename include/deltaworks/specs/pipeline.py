"""Spec of a pipeline, and the checks of its sections against each other. `pipeline_tables` checks the tables."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Self

from pydantic import model_validator

from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.base import KeyPath, Problem, path_names, paths_overlap, raise_problems, suggest_name
from deltaworks.specs.dashboards import dashboard_problems
from deltaworks.specs.enrich import EnrichSpec
from deltaworks.specs.gold import find_cycle
from deltaworks.specs.notice_delay import slowest_table, table_delay_seconds
from deltaworks.specs.pipeline_sections import ARCHIVE, PipelineSections, UnwrapSpec
from deltaworks.specs.pipeline_tables import model_problems, readable_by_views, table_problems
from deltaworks.specs.privacy_checks import privacy_problems
from deltaworks.specs.record_sources import TEXT_FORMATS, PayloadSpec, RecordSourceSpec
from deltaworks.specs.sources import DeltaSourceSpec, SourceSpec
from deltaworks.specs.types import Decimal, parse_type

#: Fields that the engine adds to events: record metadata (`_record`) and partition folders (`_partition`).
_ENGINE_FIELDS = ("record", "partition")


class PipelineSpec(PipelineSections):
    """A pipeline, from its source to its tables. Declared in `include/pipelines/<name>/pipeline.yaml`."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        problems = [*_source_problems(self), *_archive_problems(self), *table_problems(self)]
        problems += [*dashboard_problems(self.dashboards, [rule.name for rule in self.rules])]
        problems += [*_rule_problems(self, readable_by_views(self))]
        problems += [*_feed_problems(self), *model_problems(self), *_condition_problems(self)]
        raise_problems([*problems, *_enrich_problems(self), *_private_problems(self), *privacy_problems(self)])
        return self


def _source_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields keys of the pipeline that its kind of source does not support."""
    source = pipeline.source
    if pipeline.event.time.arrival and isinstance(source, DeltaSourceSpec):
        yield (
            ("event", "time", "arrival"),
            "event.time.arrival requires objects or records; for rows declare a path, such as _ingested_at",
        )
    yield from _unwrap_problems(pipeline)


def _condition_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields conditions that no event can meet, and paths that no event can have, because of the source's format."""
    for key_path, values, problem_of in _conditions(pipeline):
        if not values:
            yield key_path, f"an empty list is met by no event: write the values of {key_path[-1]!r}"
        for position, value in enumerate(values):
            if (problem := problem_of(value)) is not None:
                yield (*key_path, *([position] if len(values) > 1 else [])), problem
    names = _declared_fields(pipeline.source)
    for key_path, path in _paths_before_enrichment(pipeline) if names else ():
        if not path.startswith("_") and (len(path_names(path)) > 1 or path_names(path)[0] not in names):
            yield (
                key_path,
                f"{path!r} is no field of the declared {pipeline.source.format}; {suggest_name(path, names)}",
            )


def _conditions(
    pipeline: PipelineSections,
) -> Iterator[tuple[KeyPath, tuple[Any, ...], Callable[[Any], str | None]]]:
    """Yields the key path and the values of each condition, and the function that returns why no event has a value."""
    sections: list[tuple[KeyPath, Mapping[str, tuple[Any, ...]], Mapping[str, str]]] = []
    for index, table in enumerate(pipeline.tables):
        of_table = {column.path: column.type for column in table.columns}
        sections.append((("tables", index, "when"), table.when, of_table))
    regulation = None if pipeline.privacy is None else pipeline.privacy.regulation
    for name in ("child", "opt_out"):
        declared = getattr(regulation, name, None)
        if declared is not None:
            sections.append((("privacy", "regulation", name, "when"), declared.when, {}))
    for key_path, when, column_types in sections:
        for path, values in when.items():
            yield (*key_path, path), values, partial(_value_problem, pipeline, path, column_types.get(path, "string"))


def _value_problem(pipeline: PipelineSections, path: str, column_type: str, value: Any) -> str | None:
    source = pipeline.source
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path!r} never equals {value}, which JSON does not have"
    if path.startswith("_partition."):
        return _text_problem("the values of folders", value, ())
    if isinstance(source, PayloadSpec) and source.format in TEXT_FORMATS and not path.startswith("_record."):
        null_values = {"csv": source.csv.null_values, "tsv": source.tsv.null_values, "text": ("",)}[source.format]
        return _text_problem(f"fields of {source.format}", value, null_values)
    return _column_problem(path, column_type, value)


def _text_problem(fields: str, value: Any, null_values: Collection[str]) -> str | None:
    if not isinstance(value, str):
        return f"{fields} are texts, which never equal {value}: write {json.dumps(str(value).lower())}"
    return f"{value!r} is null in {fields}, and never a value" if value in null_values else None


def _column_problem(path: str, column_type: str, value: Any) -> str | None:
    """Returns why an event with this value would be quarantined by the column that reads it."""
    kind, is_boolean = parse_type(column_type), isinstance(value, bool)
    is_number = isinstance(kind, Decimal) or column_type in ("int", "long", "float", "double")
    if (column_type == "boolean" and not is_boolean) or (is_number and (is_boolean or isinstance(value, str))):
        name = "boolean" if column_type == "boolean" else "number"
        return (
            f"{path!r} is a column of type {column_type}, and {value!r} is not a {name}: all such events are rejected"
        )
    return None


def _declared_fields(source: SourceSpec) -> tuple[str, ...]:
    """Returns all fields that events can have; empty if the source does not declare them."""
    if not isinstance(source, PayloadSpec):
        return ()
    if source.format == "text":
        return ("line", *re.compile(source.pattern or "").groupindex)
    names = {"csv": source.csv.columns, "tsv": source.tsv.columns}.get(source.format, ())
    return (*names, "datetime") if source.format == "tsv" and {"date", "time"} <= set(names) else names


def _archive_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields conflicts between the archive and other sections of the pipeline."""
    if pipeline.archive is None:
        return
    if not isinstance(pipeline.source, RecordSourceSpec):
        alternative = "the table it reads keeps rows" if pipeline.source.kind == "delta" else "the bucket keeps objects"
        yield (
            ("archive",),
            f"an archive is only for records, which expire in kafka and kinesis; {alternative}: remove `archive`",
        )
    tables = [("tables", table) for table in pipeline.tables] + [("live", table) for table in pipeline.live]
    for index, (kind, table) in enumerate(tables):
        if table.name == ARCHIVE:
            position = index if kind == "tables" else index - len(pipeline.tables)
            yield (kind, position, "name"), f"the archive is a table called {ARCHIVE!r}; choose another name"
    for index, gold in enumerate(pipeline.gold.tables):
        if gold.name == ARCHIVE:
            yield ("gold", "tables", index, "name"), f"the archive is a table called {ARCHIVE!r}; choose another name"


def _unwrap_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields conflicts between the wrapper, the source and the event's paths."""
    unwrap, source = pipeline.unwrap, pipeline.source
    if unwrap is None:
        return
    if source.kind == "delta":
        yield ("unwrap",), "unwrap is for objects and records; the rows of a table have no wrapper"
    elif source.format != "json":
        yield ("unwrap",), f"unwrap is for format: json; {source.format} has no wrapper"
    if getattr(source, "tombstones", None) == "event":
        yield (
            ("source", "tombstones"),
            "tombstones: event cannot be combined with unwrap: a record without value has nothing to unwrap",
        )
    yield from _unwrap_keep_problems(pipeline, unwrap)


def _unwrap_keep_problems(pipeline: PipelineSections, unwrap: UnwrapSpec) -> Iterator[Problem]:
    """Yields invalid paths in `keep`: the path of the events, duplicates, and names of an event's own fields."""
    read = _paths_read_from_events(pipeline)
    for index, path in enumerate(unwrap.keep):
        key_path = ("unwrap", "keep", index)
        if _overlap(path, unwrap.path):
            yield (
                key_path,
                f"{path} overlaps with {unwrap.path}, the path of the events; use another field of the wrapper",
            )
        duplicate = next((other for other in unwrap.keep[:index] if _overlap(path, other)), None)
        if duplicate is not None:
            yield key_path, f"{path} and {duplicate} overlap; remove one of them"
        name = path_names(path)[0]
        if name in {f"_{field}" for field in _ENGINE_FIELDS}:
            yield key_path, f"{name} is added to events by the engine and cannot be kept"
        event_path = next(
            (
                other
                for other in read
                if path_names(other)[0] == name and not any(_overlap(other, retained) for retained in unwrap.keep)
            ),
            None,
        )
        if event_path is not None:
            yield (
                key_path,
                f"{event_path} is read from events, which therefore have their own {name!r}. If it is a wrapper field, "
                f"keep {event_path} too",
            )


def _paths_read_from_events(pipeline: PipelineSections) -> list[str]:
    """Returns all paths that are read from events."""
    event = pipeline.event
    paths = [*event.time.path, *event.id, *([event.name.path] if event.name.path is not None else [])]
    for table in pipeline.tables:
        paths += [*table.when, *(column.path for column in table.columns)]
    return paths


def _enrich_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields conflicts between look-ups, and columns that read results which no look-up provides."""
    first: dict[str, KeyPath] = {}
    used_names = {
        name.removeprefix("_") for table in pipeline.tables for name in table.column_types() if name[0] == "_"
    }
    for index, lookup in enumerate(pipeline.enrich):
        key_path: KeyPath = ("enrich", index, "name")
        if lookup.name in first:
            text = f"{lookup.name!r} is declared twice; give one of them another name"
            yield key_path, text, (first[lookup.name],)
        elif lookup.name in used_names or lookup.name in _ENGINE_FIELDS:
            yield key_path, f"{lookup.output_field} is reserved; choose another name"
        first.setdefault(lookup.name, key_path)
    if not pipeline.enrich:
        return
    by_field = {lookup.output_field: lookup for lookup in reversed(pipeline.enrich)}
    for key_path, path in _paths_before_enrichment(pipeline):
        if path_names(path)[0] in by_field:
            yield key_path, f"{path!r} is only available after this is read; use an original field of events"
    for key_path, path in _column_paths(pipeline):
        yield from _output_problems(key_path, path, by_field)


def _private_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields conflicts between masked fields and other sections of the pipeline."""
    if not pipeline.private:
        return
    field_names = {lookup.output_field for lookup in pipeline.enrich}
    for index, private in enumerate(pipeline.private):
        key_path: KeyPath = ("private", index, "path")
        top = path_names(private.path)[0]
        if top in field_names or top in {f"_{name}" for name in _ENGINE_FIELDS}:
            yield key_path, f"{private.path!r} is not an original field of events: mask its input instead"
        for other in range(index):
            if _overlap(private.path, pipeline.private[other].path):
                text = f"{private.path!r} and {pipeline.private[other].path!r} overlap; remove one"
                yield key_path, text, (("private", other, "path"),)
    for key_path, path in _paths_before_enrichment(pipeline):
        for index, private in enumerate(pipeline.private):
            if key_path[0] != "enrich" and _overlap(path, private.path):
                text = (
                    f"{path!r} is private: name, routing, time and id of an event must not be masked; choose "
                    "another field"
                )
                yield key_path, text, (("private", index, "path"),)
    if pipeline.archive is not None:
        yield ("archive",), "an archive keeps original payloads with private fields; remove one of the two"
    yield from _column_problems(pipeline)


def _output_problems(key_path: KeyPath, path: str, by_field: Mapping[str, EnrichSpec]) -> Iterator[Problem]:
    top, *rest = path_names(path)
    if top in by_field:
        field_names = by_field[top].output_names
        if rest and rest[0] not in field_names:
            yield key_path, f"{top} has no field {rest[0]!r}; {suggest_name(rest[0], field_names)}"
    elif top.startswith("_") and rest and top.removeprefix("_") not in _ENGINE_FIELDS:
        yield key_path, f"there is no enrichment {top.removeprefix('_')!r}; {suggest_name(top, by_field)}"


def _column_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields columns whose type no masked value fits, so that every event would be quarantined."""
    for index, table in enumerate(pipeline.tables):
        for position, column in enumerate(table.columns):
            keep = next((private.keep for private in pipeline.private if private.path == column.path), None)
            key_path: KeyPath = ("tables", index, "columns", position)
            if keep == "nothing" and column.required:
                yield (*key_path, "required"), f"{column.path!r} is removed: the column is always null"
            if keep == "network" and column.type != "string":
                yield (*key_path, "type"), f"the network of {column.path!r} is a string; declare type: string"


def _paths_before_enrichment(pipeline: PipelineSections) -> Iterator[tuple[KeyPath, str]]:
    """Yields the paths that are read before events are enriched and masked, each with its key path."""
    event = pipeline.event
    if event.name.path is not None:
        yield ("event", "name", "path"), event.name.path
    for index, path in enumerate(event.time.path):
        yield ("event", "time", "path", *([index] if len(event.time.path) > 1 else [])), path
    for index, path in enumerate(event.id):
        yield ("event", "id", *([index] if len(event.id) > 1 else [])), path
    for index, table in enumerate(pipeline.tables):
        for path in table.when:
            yield ("tables", index, "when", path), path
    for index, lookup in enumerate(pipeline.enrich):
        yield ("enrich", index, "path"), lookup.path


def _column_paths(pipeline: PipelineSections) -> Iterator[tuple[KeyPath, str]]:
    for index, table in enumerate(pipeline.tables):
        for position, column in enumerate(table.columns):
            yield ("tables", index, "columns", position, "path"), column.path


def _overlap(path: str, other: str) -> bool:
    return paths_overlap(path_names(path), path_names(other))


def _feed_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields feeds with an unknown table or a duplicate name."""
    readable = [table.name for table in pipeline.gold.tables] + [view.name for view in pipeline.views]
    first: dict[str, KeyPath] = {}
    for index, feed in enumerate(pipeline.feeds):
        key_path: KeyPath = ("feeds", index)
        if feed.name in first:
            yield (
                (*key_path, "name"),
                f"feed {feed.name!r} is declared twice; rename one",
                ((*first[feed.name], "name"),),
            )
        first.setdefault(feed.name, key_path)
        if feed.reads not in readable:
            yield (
                (*key_path, "reads"),
                f"{feed.reads!r} is not a gold table or view of this pipeline; {suggest_name(feed.reads, readable)}",
            )


def _rule_problems(pipeline: PipelineSections, readable: Collection[str]) -> Iterator[Problem]:
    """Yields problems of rules: unreadable tables, masked labels, and delays that are too short.

    Args:
        readable: tables and views that rules can read.
    """
    first: dict[str, int] = {}
    for index, rule in enumerate(pipeline.rules):
        if rule.name in first:
            others: tuple[KeyPath, ...] = (("rules", first[rule.name], "name"),)
            yield ("rules", index, "name"), f"rule {rule.name} is declared twice; rename one", others
        first.setdefault(rule.name, index)
        for position, read in enumerate(rule.reads):
            if read not in readable:
                key_path: KeyPath = ("rules", index, "reads", position)
                yield key_path, f"{rule.name!r} reads unknown table {read!r}; {suggest_name(read, readable)}"
        yield from _private_label_problems(pipeline, index, rule)
        yield from _delay_problems(pipeline, index, rule)
    yield from _inhibition_problems(pipeline)


def _private_label_problems(pipeline: PipelineSections, index: int, rule: RuleSpec) -> Iterator[Problem]:
    private = {field.path for field in pipeline.private}
    columns = {
        column.name: column.path for table in pipeline.tables for column in table.columns if column.path in private
    }
    for position, label in enumerate(rule.labels):
        if label in columns:
            text = f"{label!r} contains the private field {columns[label]}, and notifications contain labels"
            yield ("rules", index, "labels", position), f"{text}; use another column"


def _delay_problems(pipeline: PipelineSections, index: int, rule: RuleSpec) -> Iterator[Problem]:
    table = slowest_table(pipeline, rule)
    # The time of arrival is that of the batch, so no row arrives in an earlier minute.
    if table is None or rule.time_axis == "arrival":
        return
    delay = table_delay_seconds(pipeline, table)
    if rule.evaluation_delay_seconds < delay:
        text = f"a row may take {delay:g} s into {table!r}"
        yield (
            ("rules", index, "evaluation_delay_seconds"),
            f"{text}: a minute is complete only after that; write at least that",
        )


def _inhibition_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    names = [rule.name for rule in pipeline.rules]
    for index, rule in enumerate(pipeline.rules):
        for position, name in enumerate(rule.inhibited_by):
            if name not in names:
                text = f"there is no rule {name!r} in this pipeline; {suggest_name(name, names)}"
                yield ("rules", index, "inhibited_by", position), text
    cycle = find_cycle([_InhibitionNode(rule) for rule in pipeline.rules])
    if cycle:
        key_paths = {rule.name: ("rules", index, "inhibited_by") for index, rule in enumerate(pipeline.rules)}
        head, *others = sorted(key_paths[name] for name in {*cycle})
        text = f"rules inhibit each other in a cycle: {' is inhibited by '.join(cycle)}; leave one out"
        yield head, text, tuple(others)


class _InhibitionNode:
    """A rule and the rules that inhibit it, for the search of cycles."""

    def __init__(self, rule: RuleSpec) -> None:
        self.name = rule.name
        self.reads = rule.inhibited_by
