"""Infers a pipeline from event files, and writes it as `pipeline.yaml`, with a comment on each inferred choice.

The inferred pipeline is tested: it must land all events of the sample.
"""

from __future__ import annotations

import getpass
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from deltaworks.errors import ConfigError, ContractError, escape_invisible
from deltaworks.events.budget import OverBudget
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.inference.envelope_inference import UnknownFormat, choose_time_field, detect_format
from deltaworks.events.inference.field_profiles import FieldProfile, has_utc_offset, is_date_only
from deltaworks.events.inference.pipeline_proposal import (
    NO_OVERRIDES,
    Overrides,
    PipelineProposal,
    ProposedColumn,
    ProposedTable,
    propose_pipeline,
)
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import ConversionError
from deltaworks.sources.objects.land import pieces_of
from deltaworks.sources.objects.landed_inputs import Input, find_inputs
from deltaworks.specs.base import format_path
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import TEXT_FORMATS
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.times import ISO_8601, TimeFormat
from deltaworks.specs.yaml_reader import load_yaml

_PIECE_BYTES = 1 << 20
_MIN_BYTES_PER_FILE = 256 << 10
#: Maximum number of files whose format is detected.
_MAX_DETECTED_FILES = 50
_WRAPPER_SAMPLE_SIZE = 1_000


@dataclass(slots=True)
class EventSample:
    """The payloads of a sample, and the name of the field that contains the events in each value.

    The number of files read, completely or in part, is `files`; `is_complete` is True if every file was read
    completely.
    """

    source: FileSourceSpec
    payloads: list[bytes] = field(default_factory=list)
    files: int = 0
    is_complete: bool = True
    unwrap: str = ""

    @property
    def bytes(self) -> int:
        """The decompressed size of the payloads."""
        return sum(map(len, self.payloads))

    def values(self) -> Iterator[Any]:
        """Yields every readable value of the payloads."""
        events_of = create_framer(self.source)
        for payload in self.payloads:
            try:
                for value, _ in events_of(payload):
                    if not isinstance(value, Malformed | OverBudget):
                        yield value
            except ConversionError:  # this payload is unreadable
                continue

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the events of all values. Values that are not events are skipped, since the stream will quarantine
        them.
        """
        for value in self.values():
            yield from _unwrap(value, self.unwrap)


def sample_files(inputs: Sequence[Input], location: Mapping[str, str], *, max_bytes: int) -> EventSample:
    """Reads the beginning of every file, up to about `max_bytes` in total.

    Args:
        location: `relay`, `bucket` and `prefix` of the source.

    Raises:
        ContractError: FORMAT_UNKNOWN, INPUT_DAMAGED, INPUT_TOO_LARGE.
        ConfigError: INPUT_MISSING.
    """
    format_options = _detect_format(inputs[:_MAX_DETECTED_FILES])
    source = FileSourceSpec.model_validate({"kind": "s3_sqs", **location, **format_options})
    sample = EventSample(source)
    bytes_per_file = max(_MIN_BYTES_PER_FILE, max_bytes // len(inputs))
    for file in inputs:
        if sample.bytes >= max_bytes:
            sample.is_complete = False
            break
        sample.files += 1
        bytes_read = 0
        with file.open(decompress=source.format not in ("parquet", "avro")) as content:
            for piece in pieces_of(content, source, object_bytes=_PIECE_BYTES):
                if bytes_read >= bytes_per_file:
                    sample.is_complete = False
                    break
                sample.payloads.append(piece.data)
                bytes_read += len(piece.data)
    sample.unwrap = _find_wrapper(sample) if source.format == "json" else ""
    return sample


def _detect_format(inputs: Sequence[Input]) -> Mapping[str, Any]:
    forms: dict[str, tuple[Mapping[str, Any], Input]] = {}
    for file in inputs:
        with file.open() as content:
            head = content.head()
        try:
            form = detect_format(head)
        except UnknownFormat as unknown:
            raise ContractError("FORMAT_UNKNOWN", f"{file}: {unknown}.") from unknown
        forms.setdefault(repr(form), (form, file))
    if len(forms) > 1:
        named = "; ".join(f"{file} is {form['format']}" for form, file in forms.values())
        raise ContractError(
            "FORMAT_UNKNOWN",
            f"A pipeline reads one format, and these files have {len(forms)}: {named}.",
            hint="Give files of one format, and create another pipeline for the others.",
        )
    return next(iter(forms.values()))[0]


def _unwrap(value: Any, unwrap: str) -> Iterator[dict[str, Any]]:
    if unwrap:
        value = value.get(unwrap) if isinstance(value, dict) else None
        if isinstance(value, str):
            try:
                value = orjson.loads(value)
            except orjson.JSONDecodeError:
                return
    for event in value if isinstance(value, list) else [value]:
        if isinstance(event, dict):
            yield event


def _find_wrapper(sample: EventSample) -> str:
    """Returns the field that contains the event or events of every value; empty if the values themselves are events."""
    first = [value for value in islice(sample.values(), _WRAPPER_SAMPLE_SIZE) if isinstance(value, dict)]
    if not first:
        return ""
    outer = _profile(first)
    for name in first[0]:
        if not name or "." in name or not all(_is_wrapper(name, value) for value in first):
            continue
        inner = [event for value in first for event in _unwrap(value, name)]
        # A value that has a time field is itself an event. Requests as API gateways pass them on are an exception:
        # their body contains the events.
        is_request = name == "body" and all(isinstance(value.get(name), str | dict) for value in first)
        if (
            inner
            and choose_time_field(_profile(inner)) is not None
            and (is_request or choose_time_field(outer) is None)
        ):
            return str(name)
    return ""


def _profile(events: Sequence[dict[str, Any]]) -> FieldProfile:
    profile = FieldProfile()
    for event in events:
        profile.add_value(event)
    return profile


def _is_wrapper(name: str, values: dict[str, Any]) -> bool:
    """Returns whether this field contains events; an object does if it is the body of a request."""
    value = values.get(name)
    if isinstance(value, dict):
        return name == "body" and bool(value)
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return False
        return isinstance(value, dict) or _is_list_of_objects(value)
    return _is_list_of_objects(value)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(event, dict) for event in value)


#: Pattern of text that needs no quotes in YAML, also within brackets.
_PLAIN_SCALAR = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
#: Words that YAML 1.1 or 1.2 parses as another type.
_RESERVED_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_MAX_LISTED = 8
_MAX_COMMENT_CHARACTERS = 110


def pipeline_yaml(
    proposal: PipelineProposal, sample: EventSample, *, name: str, owner: str, group: str = "small"
) -> str:
    """Returns the text of `pipeline.yaml`, valid YAML for any event and field names."""
    lines = [
        *_header(proposal, sample),
        f"pipeline: {yaml_scalar(name)}",
        f"description: {yaml_scalar(f'Events of {name}: say here what they are, and who sends them.')}",
        f"owner: {yaml_scalar(owner)}",
        "",
        *_source(proposal, sample.source),
        "",
        *_event(proposal, sample),
        "",
        "tables:",
    ]
    for table in proposal.tables:
        lines += [*_table(table, proposal), ""]
    lines += ["# How often what has landed becomes a batch; 60 unless declared.", "stream: {trigger_seconds: 15}", ""]
    lines += ["# One driver runs all small streams; without this line the stream has its own, of about 0.9 GB."]
    lines += [f"stream_group: {yaml_scalar(group)}"]
    return "\n".join([*lines, "", *_gold_example(proposal), ""])


def yaml_scalar(text: str) -> str:
    """Returns a text as a YAML scalar: plain if that is safe, quoted otherwise."""
    if _PLAIN_SCALAR.fullmatch(text) and text.lower() not in _RESERVED_WORDS:
        return text
    return '"' + escape_invisible(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _comment(text: str, *, indent: int = 0) -> Iterator[str]:
    """Yields a wrapped comment. Line breaks in producers' names are escaped."""
    line = ""
    for word in escape_invisible(text).split(" "):
        if line and len(line) + len(word) >= _MAX_COMMENT_CHARACTERS - indent:
            yield f"{' ' * indent}# {line}"
            line = ""
        line = f"{line} {word}" if line else word
    yield f"{' ' * indent}# {line}"


def _header(proposal: PipelineProposal, sample: EventSample) -> Iterator[str]:
    coverage = "all" if sample.is_complete else "the beginning"
    yield from _comment(
        f"Inferred from {proposal.events:,} events: {coverage} of {sample.files:,} file{'s' * (sample.files != 1)}. "
        "Types take every value that was seen; what fits no column is kept in _rescued. Change what you know better, "
        "before the stream first runs: `deltaworks pipelines check` reads it."
    )


def _source(proposal: PipelineProposal, source: FileSourceSpec) -> Iterator[str]:
    yield "source:"
    yield f"  kind: {source.kind}"
    for key in ("relay", "bucket", "prefix"):
        yield f"  {key}: {yaml_scalar(getattr(source, key))}"
    yield f"  format: {source.format}"
    null_words = proposal.null_words
    if source.format in ("csv", "tsv"):
        declared: dict[str, Any] = source.csv.model_dump() if source.format == "csv" else source.tsv.model_dump()
        defaults = type(source.csv)() if source.format == "csv" else type(source.tsv)()
        if null_words:
            declared["null_values"] = (*declared["null_values"], *null_words)
            yield from _comment("null_values: found in columns of numbers or times.", indent=2)
        changed = {key: value for key, value in declared.items() if value != getattr(defaults, key)}
        if changed:
            yield f"  {source.format}: {_flow_mapping(changed)}"


def _flow_mapping(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_flow_value(value)}" for key, value in values.items()) + "}"


def _flow_value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(dict.fromkeys(map(_flow_value, value))) + "]"
    return str(value).lower() if isinstance(value, bool) else yaml_scalar(value)


def _event(proposal: PipelineProposal, sample: EventSample) -> Iterator[str]:
    if sample.unwrap:
        yield from _comment(
            f"Every value has its events in {yaml_scalar(sample.unwrap)}; `keep` lists other fields to keep."
        )
        yield f"unwrap: {{path: {yaml_scalar(sample.unwrap)}}}"
        yield ""
    yield "event:"
    if proposal.type is None:
        yield from _comment("No text field in every event looks like a type: all events have the same name.", indent=2)
        yield f"  name: {{constant: {yaml_scalar(proposal.tables[0].name)}}}"
    else:
        yield from _comment(f"The type: {proposal.type.reason}.", indent=2)
        yield f"  name: {{path: {yaml_scalar(proposal.type.path_text)}}}"
    yield from _comment(f"The time: {proposal.time.reason}.", indent=2)
    form = proposal.time.form
    if form.format is not None:
        yield from _comment(_format_note(form.format), indent=2)
    yield f"  time: {{path: {yaml_scalar(proposal.time.path_text)}, {_time_format(form)}}}"
    if proposal.id is None:
        reason = (
            "The id: no field is in every event with a different value. Without an id, duplicates are not detected."
        )
        yield from _comment(reason, indent=2)
    else:
        yield from _comment(f"The id: {proposal.id.reason}.", indent=2)
        yield f"  id: {yaml_scalar(proposal.id.path_text)}"


def _table(table: ProposedTable, proposal: PipelineProposal) -> Iterator[str]:
    yield f"  - name: {table.name}"
    yield f"    description: {yaml_scalar(_description(table))}"
    if table.event_type is None:
        if table.catch_all == "rest":
            yield from _other_types_comment(proposal)
        yield f"    catch_all: {'rest' if table.catch_all == 'rest' else 'true'}"
    else:
        assert proposal.type is not None
        yield f"    when: {{{yaml_scalar(proposal.type.path_text)}: {yaml_scalar(table.event_type)}}}"
    yield "    columns:" if table.columns.columns else "    columns: []"
    for column in table.columns.columns:
        yield from _format_comment(column)
        yield f"      - {_column(column, table)}"
    if table.keeps_undeclared_fields:
        yield from _omitted_fields(table)
        yield "    evolve: rescue"
    if not proposal.partition_by_date:
        yield from _comment(
            "Not partitioned by date: the events span so many days that each would have few rows.", indent=4
        )
        yield "    partition_by: []"


def _description(table: ProposedTable) -> str:
    if table.event_type is not None:
        return f"Events called {table.event_type}."
    if table.catch_all == "rest":
        return "Events of every type that has no table of its own."
    return "Every event."


def _other_types_comment(proposal: PipelineProposal) -> Iterator[str]:
    named = [f"{yaml_scalar(value)} {count:,}" for value, count in proposal.rest.items()]
    more = f", and {len(named) - _MAX_LISTED:,} more" if len(named) > _MAX_LISTED else ""
    types = ", ".join(named[:_MAX_LISTED]) + more if named else "none so far"
    yield from _comment(
        f"Types that are rare, or new: {types}. Their fields are in _rescued, as JSON; for a table of its own copy one "
        "of those above.",
        indent=4,
    )


def _column(column: ProposedColumn, table: ProposedTable) -> str:
    kind = str(column.inferred.kind)
    parts = [f"name: {column.name}", f"path: {yaml_scalar(format_path(column.path))}", f"type: {yaml_scalar(kind)}"]
    if column.inferred.form != ISO_8601:
        parts.append(_time_format(column.inferred.form))
    share = 100 * column.events / max(1, table.events)
    return f"{{{', '.join(parts)}}}" + (f" # in {share:.2g} % of events" if share < 100 else "")


def _time_format(form: TimeFormat) -> str:
    return f"unit: {form.unit}" if form.format is None else f"format: {yaml_scalar(form.format)}"


def _format_comment(column: ProposedColumn) -> Iterator[str]:
    """Yields a comment on a time column that is not ISO 8601, or on a text column that may contain times."""
    form, several = column.inferred.form, column.inferred.formats
    if form.format is not None:
        yield from _comment(_format_note(form.format), indent=6)
    elif several:
        listed = " and ".join(map(yaml_scalar, several))
        kind = "date" if is_date_only(several[0]) else "timestamp"
        text = (
            f"A text: all values fit {listed}, and do not tell which is meant. Declare type: {kind} with that format."
        )
        yield from _comment(text, indent=6)


def _format_note(pattern: str) -> str:
    """Returns the comment on a chosen time format."""
    text = f"All values fit the format {yaml_scalar(pattern)}, and no other that was tried."
    if has_utc_offset(pattern) or is_date_only(pattern):
        return text
    return f"{text} They name no offset and are read as UTC: declare `zone` where they are by other clocks."


def _omitted_fields(table: ProposedTable) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for path, reason in table.columns.omitted.items():
        reasons.setdefault(reason, []).append(yaml_scalar(format_path(path)))
    for reason, paths in reasons.items():
        more = f" and {len(paths) - _MAX_LISTED:,} more" if len(paths) > _MAX_LISTED else ""
        yield from _comment(f"No column, {reason}: {', '.join(paths[:_MAX_LISTED])}{more}.", indent=4)


def _gold_example(proposal: PipelineProposal) -> Iterator[str]:
    table = proposal.tables[0].name
    yield "# A gold table, updated as data arrives: put this SQL into gold/events_per_day.sql,"
    yield f"#   SELECT event_date, event_name, count(*) AS events FROM {table} GROUP BY event_date, event_name"
    yield "# and declare it:"
    yield "#   gold:"
    yield "#     lag: 5m"
    yield f"#     tables: [{{name: events_per_day, sql: gold/events_per_day.sql, reads: [{table}],"
    yield "#              partition_by: event_date}]"


SAMPLE_BYTES = 64 << 20
#: The batch that sample events are parsed as. Its values do not matter: only limits on the age of events would use
#: them.
_STAMP = BatchMetadata(batch_id=0, ingested_at_us=0, fingerprint="")


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredPipeline:
    """A declaration as text, with the sample's quarantined events by reason and field."""

    name: str
    text: str
    proposal: PipelineProposal
    sample: EventSample
    quarantined: Counter[str]


def infer_pipeline(
    catalog: Catalog,
    files: Sequence[str],
    *,
    name: str,
    relay: str = "",
    overrides: Overrides = NO_OVERRIDES,
    sample_bytes: int = SAMPLE_BYTES,
) -> InferredPipeline:
    """Infers a pipeline that reads files like the sample from the landing bucket. Writes nothing.

    Args:
        relay: the relay whose bucket is read; optional if there is only one.
        sample_bytes: approximate size of the sample, decompressed.

    Raises:
        ConfigError: INPUT_MISSING, RELAY_UNKNOWN.
        ContractError: FORMAT_UNKNOWN, EVENTS_WITHOUT_TIME, INPUT_DAMAGED, INPUT_TOO_LARGE, SAMPLE_QUARANTINED.
    """
    relay_spec = _resolve_relay(catalog, relay)
    location = {"relay": relay_spec.relay, "bucket": relay_spec.buckets[0], "prefix": f"{name}/"}
    sample = sample_files(find_inputs(files), location, max_bytes=sample_bytes)
    return infer_from_sample(sample, name=name, overrides=overrides, group=_stream_group(catalog))


def _stream_group(catalog: Catalog) -> str:
    """Returns the group of new streams: the first that the environment declares or uses, else `small`."""
    overridden = catalog.environment.overrides.get("pipelines", {}).values()
    used = [str(changes["stream_group"]) for changes in overridden if changes.get("stream_group")]
    return next(iter([*catalog.environment.stream_groups, *used]), "small")


def infer_from_sample(
    sample: EventSample, *, name: str, overrides: Overrides = NO_OVERRIDES, group: str = "small"
) -> InferredPipeline:
    """Infers the pipeline for the events of a sample.

    Args:
        group: the stream group that it joins.

    Raises:
        ContractError: EVENTS_WITHOUT_TIME; SAMPLE_QUARANTINED, none of the events would become a row.
    """
    values_are_text = sample.source.format in TEXT_FORMATS
    proposal = propose_pipeline(sample.events, name=name, values_are_text=values_are_text, overrides=overrides)
    text = pipeline_yaml(proposal, sample, name=name, owner=_user_name(), group=group)
    spec = PipelineSpec.model_validate(load_yaml(text.encode()).values)
    quarantined, rows = _parse_sample(spec, sample)
    if quarantined and not rows:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in quarantined.most_common(3))
        raise ContractError(
            "SAMPLE_QUARANTINED",
            f"With time {proposal.time.path_text} ({proposal.time.form.format or proposal.time.form.unit}) all "
            f"{quarantined.total():,} events of the sample would go to quarantine: {reasons}.",
        )
    return InferredPipeline(name=name, text=text, proposal=proposal, sample=sample, quarantined=quarantined)


def write_pipeline(catalog: Catalog, pipeline: InferredPipeline) -> Path:
    """Writes `pipeline.yaml` into a new folder of the project.

    Raises:
        ConfigError: PIPELINE_EXISTS.
    """
    folder = catalog.folder(pipeline.name)
    path = folder / "pipeline.yaml"
    if path.exists():
        raise ConfigError("PIPELINE_EXISTS", f"Pipeline {pipeline.name!r} exists already: {path}.")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(pipeline.text, encoding="utf-8")
    return path


def _resolve_relay(catalog: Catalog, name: str) -> RelaySpec:
    if name:
        return catalog.relay(name)
    with_queue = [relay for relay in catalog.relays.values() if relay.queue_url is not None]
    if len(with_queue) == 1:
        return with_queue[0]
    raise ConfigError(
        "RELAY_UNKNOWN",
        f"{len(with_queue) or 'No'} relays read a queue: it is not clear in which bucket the files are to land.",
        hint=f"Choose one with --relay NAME. Known: {', '.join(catalog.relays) or 'none'}.",
    )


def _parse_sample(spec: PipelineSpec, sample: EventSample) -> tuple[Counter[str], int]:
    """Counts the events of the sample that would be quarantined, by reason, and the rows of the other tables."""
    reasons: Counter[str] = Counter()
    landed = 0
    payloads = (Payload(seq, f"sample-{seq}", data) for seq, data in enumerate(sample.payloads))
    for table, rows in Parser(spec).parse(payloads, _STAMP):
        if table == "quarantine":
            for row in rows.column("reasons").to_pylist():
                reasons[_reason_label(row)] += 1
        else:
            landed += rows.num_rows
    return reasons, landed


def _reason_label(reasons: Sequence[dict[str, str]]) -> str:
    first = reasons[0]
    return f"{first['code']} {first['path']}".strip()


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the process user has no name
        return "data-platform"
