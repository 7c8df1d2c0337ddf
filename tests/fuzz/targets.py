"""Base classes of fuzz targets: each has variants, inputs, the product's reading and a slow reader.

To add a target, add a line to `TARGETS`, which `tests.fuzz.registry` collects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hypothesis import strategies as st

from deltaworks.events.budget import OverBudget
from deltaworks.events.chunks import Payload
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.specs.pipeline import PipelineSpec
from tests.fuzz import event_checks, plain_readers
from tests.fuzz.cases import Case
from tests.fuzz.event_checks import Observed, declared, observe, problems
from tests.fuzz.plain_readers import Reading

Reader = Callable[[bytes], Reading]
Inputs = st.SearchStrategy[bytes]


class Target(Protocol):
    """One entry point of the product."""

    name: str
    #: Mutations that suit its bytes: a key of `mutations.TOKENS`.
    kind: str

    def variants(self) -> Sequence[str]:
        """Returns the names of the declarations it is read with."""

    def inputs(self, variant: str) -> Inputs:
        """Returns the Hypothesis strategy for its inputs."""

    def observe(self, case: Case) -> Any:
        """Returns the product's result; equal inputs give results for which `differs` is false."""

    def problems(self, case: Case, observed: Any) -> Sequence[str]:
        """Returns the contradictions with the slow reader."""

    def counts(self, observed: Any) -> tuple[int, int]:
        """Returns the numbers of events and of quarantined events."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One declaration of a format: the source's keys, input strategy and slow reader."""

    source: Mapping[str, Any]
    inputs: Inputs
    reader: Reader
    event: Mapping[str, Any] | None = None

    def spec(self) -> PipelineSpec:
        return declared(self.event, **self.source)


@dataclass(frozen=True, slots=True)
class PayloadTarget:
    """Objects of one format, passed to the parser as a task does."""

    name: str
    kind: str
    by_variant: Mapping[str, Variant]

    def variants(self) -> Sequence[str]:
        return list(self.by_variant)

    def inputs(self, variant: str) -> Inputs:
        return self.by_variant[variant].inputs

    def observe(self, case: Case) -> Observed:
        variant = self.by_variant[case.variant]
        spec = variant.spec()
        return observe(spec, [Payload(1, "k", case.data)], _lost_bytes(spec, case.data))

    def problems(self, case: Case, observed: Observed) -> Sequence[str]:
        return [*observed.notes, *problems(observed, self.by_variant[case.variant].reader(case.data))]

    def counts(self, observed: Observed) -> tuple[int, int]:
        return event_checks.counts(observed)


def _lost_bytes(spec: PipelineSpec, payload: bytes) -> list[str]:
    """Returns the problem if bytes of JSON without arrays are missing from all events, separators excepted."""
    if spec.source.format != "json" or b"[" in payload or len(payload) > 1 << 16:
        return []
    try:
        events = list(create_framer(spec.source)(payload))
    except Exception:  # an unreadable payload is judged by its quarantine row
        return []
    if any(isinstance(value, OverBudget) for value, _ in events):  # bytes beyond a budget stay in the object
        return []
    kept = b"".join(raw for _, raw in events)
    if _squeezed(kept) == _squeezed(payload):
        return []
    return ["bytes vanished between the events"]


def _squeezed(data: bytes) -> bytes:
    return data.replace(b"\xef\xbb\xbf", b"").translate(None, b" \t\r\n,\x1e")


@dataclass(frozen=True, slots=True)
class CompressedTarget:
    """Compressed objects, opened and parsed; a slow decompressor precedes the format's slow reader."""

    name: str
    kind: str
    by_variant: Mapping[str, Variant]
    open_content: Callable[[bytes], bytes | Reason]
    plain_content: Callable[[bytes], bytes | None]

    def variants(self) -> Sequence[str]:
        return list(self.by_variant)

    def inputs(self, variant: str) -> Inputs:
        return self.by_variant[variant].inputs

    def observe(self, case: Case) -> Observed:
        content = self.open_content(case.data)
        spec = self.by_variant[case.variant].spec()
        if isinstance(content, Reason):
            return observe(spec, [Payload(1, "k", None, content)], [f"refused: {content.code}"])
        return observe(spec, [Payload(1, "k", content)], ["opened"])

    def problems(self, case: Case, observed: Observed) -> Sequence[str]:
        content, opened = self.plain_content(case.data), observed.notes == ("opened",)
        if content is None:
            return problems(observed, plain_readers.NOTHING) if not opened else ["damaged content was read"]
        if not opened:
            return [f"content of {len(content)} bytes is whole, and {observed.notes[0]}"]
        return problems(observed, self.by_variant[case.variant].reader(content))

    def counts(self, observed: Observed) -> tuple[int, int]:
        return event_checks.counts(observed)


#: Reason for refusing content above the size limit; the slow reader stops there too.
TOO_LARGE = ReasonCode.TOO_LARGE
