"""What the fuzzer feeds: for each target its variants, its inputs, the product's reading of them and the slow one.

A target is added by a line in `TARGETS`, which `tests.fuzz.registry` assembles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hypothesis import strategies as st

from deltaworks.events.budget import OverBudget
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.parse import Payload
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.specs.pipeline import PipelineSpec
from tests.fuzz import event_checks, plain_readers
from tests.fuzz.cases import Case
from tests.fuzz.event_checks import Observed, declared, observe, problems
from tests.fuzz.plain_readers import Reading

Reader = Callable[[bytes], Reading]
Inputs = st.SearchStrategy[bytes]


class Target(Protocol):
    """One way into the product."""

    name: str
    #: Which damages suit its bytes: a key of `mutations.TOKENS`.
    kind: str

    def variants(self) -> Sequence[str]:
        """The ways it is declared to read."""

    def inputs(self, variant: str) -> Inputs:
        """Inputs by structure."""

    def observe(self, case: Case) -> Any:
        """What the product makes of it; equal, and `differs` is false, for equal inputs."""

    def problems(self, case: Case, observed: Any) -> Sequence[str]:
        """What a slow reading has against it."""

    def counts(self, observed: Any) -> tuple[int, int]:
        """Events, and how many of them are in quarantine."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One declaration of a format: the source's keys, its inputs and its slow reader."""

    source: Mapping[str, Any]
    inputs: Inputs
    reader: Reader
    event: Mapping[str, Any] | None = None

    def spec(self) -> PipelineSpec:
        return declared(self.event, **self.source)


@dataclass(frozen=True, slots=True)
class PayloadTarget:
    """Objects of one format, given to the parser as a task gives them."""

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
    """Whether every byte of JSON without arrays is in the bytes of one of its events, white space excepted."""
    if spec.source.format != "json" or b"[" in payload or len(payload) > 1 << 16:
        return []
    try:
        events = list(create_framer(spec.source)(payload))
    except Exception:  # nothing of it can be read: that is judged by its row in quarantine
        return []
    if any(isinstance(value, OverBudget) for value, _ in events):  # what is left behind a budget stays in the object
        return []
    kept = b"".join(raw for _, raw in events)
    if _squeezed(kept) == _squeezed(payload.removeprefix(b"\xef\xbb\xbf")):
        return []
    return ["bytes vanished between the events"]


def _squeezed(data: bytes) -> bytes:
    return data.translate(None, b" \t\r\n")


@dataclass(frozen=True, slots=True)
class CompressedTarget:
    """Objects that are compressed, opened and parsed; a slow reader of the compression comes before the format's."""

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


#: Why content that grows beyond the bound is refused; a slow reader stops there too.
TOO_LARGE = ReasonCode.TOO_LARGE
