"""The results of a demo: answers, freshness, provenance, memory and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sandbox.demo.answers import Answer
from sandbox.demo.dashboards import DashboardPage
from sandbox.demo.freshness import Freshness
from sandbox.demo.memory import MemorySample
from sandbox.demo.phases import Phase
from sandbox.demo.provenance_check import ProvenanceReport
from sandbox.stack.report import StackAddresses

#: Maximum number of list requests: the relay lists once a day to find objects without a notification, which is one page
#: of a thousand objects in a demo.
RELAY_LISTS = 1
#: Objects that land earlier may wait for streams to start.
START_SECONDS = 120.0


@dataclass(slots=True)
class DemoReport:
    """The results of one demo. `jobs` are DAG runs with their seconds; some run concurrently.
    `steady_freshness` covers objects that landed START_SECONDS after the first one or later; empty if there are none.
    """

    answers: list[Answer] = field(default_factory=list)
    freshness: list[Freshness] = field(default_factory=list)
    steady_freshness: list[Freshness] = field(default_factory=list)
    provenance: ProvenanceReport | None = None
    landing_lists: int = -1
    health: str = ""
    maintenance: list[str] = field(default_factory=list)
    memory: MemorySample | None = None
    memory_samples: list[MemorySample] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    jobs: list[tuple[str, float]] = field(default_factory=list)
    dashboards: list[DashboardPage] = field(default_factory=list)
    html: Path | None = None
    addresses: StackAddresses | None = None

    @property
    def is_right(self) -> bool:
        """Whether all checks of the demo passed."""
        return not self.failures()

    def failures(self) -> list[str]:
        """Returns descriptions of the failed checks."""
        wrong = [f"{answer.pipeline}: {answer.question}" for answer in self.answers if not answer.is_right]
        wrong += [
            f"dashboard {page.pipeline} {page.name}: {panel}"
            for page in self.dashboards
            for panel in page.failed_panels
        ]
        if not self.answers:
            wrong.append("there are no answers")
        if self.provenance is None or self.provenance.commits_without_origin or not self.provenance.commits:
            wrong.append("not every commit names its pipeline, batch and run")
        if not 0 <= self.landing_lists <= RELAY_LISTS:
            wrong.append(f"the landing bucket was listed {self.landing_lists} times")
        if self.health != "healthy":
            wrong.append(f"the streams are {self.health or 'not judged'}")
        return wrong

    def totals(self) -> tuple[float, float]:
        """Returns seconds and CPU seconds of all phases."""
        return sum(phase.seconds for phase in self.phases), sum(phase.cpu_seconds for phase in self.phases)

    def describe(self) -> list[tuple[str, str]]:
        """Returns names and values of the facts shown in the terminal and in the HTML report."""
        facts = []
        for freshness in self.freshness:
            to_gold = f"p50 {freshness.gold_p50_seconds:.0f} s, p95 {freshness.gold_p95_seconds:.0f} s"
            to_bronze = f"p50 {freshness.bronze_p50_seconds:.0f} s, p95 {freshness.bronze_p95_seconds:.0f} s"
            text = f"{to_gold} over {freshness.objects} objects (to bronze {to_bronze})"
            facts.append((f"{freshness.pipeline}: landing to gold", text))
        if self.provenance is not None:
            named = self.provenance.commits - len(self.provenance.commits_without_origin)
            facts.append(("commits naming pipeline, batch, run", f"{named} of {self.provenance.commits}"))
            facts += [("  not named", commit) for commit in self.provenance.commits_without_origin[:5]]
        lists = f"{self.landing_lists} (streams never list; the relay does once a day)"
        facts += [("list requests to the landing bucket", lists), ("streams", self.health)]
        facts += [(f"run of {dag_id}", f"{seconds:.0f} s") for dag_id, seconds in self.jobs]
        facts += [("maintenance of games", outcome) for outcome in self.maintenance]
        facts += [
            (
                f"dashboard {page.pipeline} {page.name}",
                f"{page.panels_with_rows} of {page.panels} panels with rows: {page.path}",
            )
            for page in self.dashboards
        ]
        if self.memory is not None:
            facts.append(("peak memory", f"{self.memory.total_bytes / 2**30:.1f} GiB ({self.memory.measure})"))
        return facts
