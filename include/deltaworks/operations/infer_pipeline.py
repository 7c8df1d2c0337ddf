"""Infers a pipeline declaration from event files, and checks that it lands all events of the sample."""

from __future__ import annotations

import getpass
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.inference.pipeline_proposal import NO_OVERRIDES, Overrides, PipelineProposal, propose_pipeline
from deltaworks.events.parse import Parser
from deltaworks.operations.event_sample import EventSample, sample_files
from deltaworks.operations.pipeline_yaml import pipeline_yaml
from deltaworks.sources.objects.landing.inputs import find_inputs
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.sources.records import TEXT_FORMATS
from deltaworks.specs.yaml_reader import load_yaml

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
        ContractError: FORMAT_UNKNOWN, EVENTS_WITHOUT_TIME, INPUT_DAMAGED, INPUT_TOO_LARGE.
    """
    relay_spec = _resolve_relay(catalog, relay)
    location = {"relay": relay_spec.relay, "bucket": relay_spec.buckets[0], "prefix": f"{name}/"}
    sample = sample_files(find_inputs(files), location, max_bytes=sample_bytes)
    return infer_from_sample(sample, name=name, overrides=overrides)


def infer_from_sample(sample: EventSample, *, name: str, overrides: Overrides = NO_OVERRIDES) -> InferredPipeline:
    """Infers the pipeline for the events of a sample.

    Raises:
        ContractError: EVENTS_WITHOUT_TIME.
    """
    values_are_text = sample.source.format in TEXT_FORMATS
    proposal = propose_pipeline(sample.events, name=name, values_are_text=values_are_text, overrides=overrides)
    text = pipeline_yaml(proposal, sample, name=name, owner=_user_name())
    spec = PipelineSpec.model_validate(load_yaml(text.encode()).values)
    quarantined = _count_quarantined(spec, sample)
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


def _count_quarantined(spec: PipelineSpec, sample: EventSample) -> Counter[str]:
    """Counts the events of the sample that would be quarantined, by reason."""
    reasons: Counter[str] = Counter()
    payloads = (Payload(seq, f"sample-{seq}", data) for seq, data in enumerate(sample.payloads))
    for table, rows in Parser(spec).parse(payloads, _STAMP):
        if table == "quarantine":
            for row in rows.column("reasons").to_pylist():
                reasons[_reason_label(row)] += 1
    return reasons


def _reason_label(reasons: Sequence[dict[str, str]]) -> str:
    first = reasons[0]
    return f"{first['code']} {first['path']}".strip()


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the process user has no name
        return "data-platform"
