"""The results of a run of the demo: answers, freshness, provenance, memory and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sandbox.demo.answers import Answer
from sandbox.demo.freshness import Freshness
from sandbox.demo.memory import MemorySample
from sandbox.demo.provenance_check import ProvenanceReport
from sandbox.stack.report import StackAddresses


@dataclass(slots=True)
class DemoReport:
    """The results of one run."""

    answers: list[Answer] = field(default_factory=list)
    freshness: list[Freshness] = field(default_factory=list)
    provenance: ProvenanceReport | None = None
    landing_lists: int = -1
    health: str = ""
    maintenance: list[str] = field(default_factory=list)
    memory: MemorySample | None = None
    memory_samples: list[MemorySample] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    html: Path | None = None
    addresses: StackAddresses | None = None

    @property
    def right(self) -> bool:
        """Whether everything the demo promises held."""
        named = self.provenance is not None and not self.provenance.unnamed and self.provenance.commits > 0
        answered = bool(self.answers) and all(answer.right for answer in self.answers)
        return answered and named and self.landing_lists == 0 and self.health == "healthy"
