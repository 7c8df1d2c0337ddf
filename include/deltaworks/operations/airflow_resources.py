"""Responses of Airflow's REST API as typed values: health, DAGs, runs, tasks and import errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

FINISHED_STATES = frozenset({"success", "failed"})


@dataclass(frozen=True, slots=True)
class Component:
    """A component of Airflow with its status. The heartbeat is None if it never ran."""

    status: str
    heartbeat: datetime | None

    @property
    def is_healthy(self) -> bool:
        """Whether Airflow reports the component as healthy. For 30 s after its process has died, Airflow still does."""
        return self.status == "healthy"

    @classmethod
    def from_api(cls, answer: Mapping[str, Any], name: str) -> Self:
        """Returns the component with this name from a health response."""
        part = answer.get(name) or {}
        return cls(part.get("status") or "unknown", _parse_time(part.get(f"latest_{name}_heartbeat")))


@dataclass(frozen=True, slots=True)
class Health:
    """Health of Airflow's components."""

    metadatabase: Component
    scheduler: Component
    dag_processor: Component
    triggerer: Component

    @property
    def is_healthy(self) -> bool:
        """Whether all components are healthy."""
        return all(getattr(self, item.name).healthy for item in fields(self))

    @classmethod
    def from_api(cls, answer: Mapping[str, Any]) -> Self:
        """Parses a health response."""
        return cls(**{item.name: Component.from_api(answer, item.name) for item in fields(cls)})


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG in Airflow; `file` is the path of its source below the DAG folder."""

    dag_id: str
    is_paused: bool
    tags: tuple[str, ...]
    has_import_errors: bool
    file: str = ""

    @classmethod
    def from_api(cls, item: Mapping[str, Any]) -> Self:
        """Parses a DAG of a response."""
        tags = tuple(tag["name"] for tag in item["tags"])
        return cls(
            item["dag_id"], item["is_paused"], tags, item["has_import_errors"], item.get("relative_fileloc") or ""
        )


@dataclass(frozen=True, slots=True)
class DagImportError:
    """A DAG file that cannot be imported."""

    filename: str
    stack_trace: str

    @property
    def last_line(self) -> str:
        """The error message, which is the last line of the stack trace."""
        lines = [line.strip() for line in self.stack_trace.splitlines() if line.strip()]
        return lines[-1] if lines else "no trace"


@dataclass(frozen=True, slots=True)
class DagRun:
    """A run of a DAG."""

    dag_id: str
    run_id: str
    state: str
    start: datetime | None
    end: datetime | None
    conf: Mapping[str, Any]
    note: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the run has succeeded or failed."""
        return self.state in FINISHED_STATES

    @classmethod
    def from_api(cls, item: Mapping[str, Any]) -> Self:
        """Parses a run of a response."""
        start, end = _parse_time(item["start_date"]), _parse_time(item["end_date"])
        conf, note = item["conf"] or {}, item.get("note") or ""
        return cls(item["dag_id"], item["dag_run_id"], item["state"], start, end, conf, note)


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """The latest try of a task in a run. Its state is None before it is scheduled."""

    task_id: str
    state: str | None
    try_number: int
    start: datetime | None
    end: datetime | None
    duration_seconds: float | None

    @classmethod
    def from_api(cls, item: Mapping[str, Any]) -> Self:
        """Parses a task instance of a response."""
        return cls(
            task_id=item["task_id"],
            state=item["state"],
            try_number=item["try_number"],
            start=_parse_time(item["start_date"]),
            end=_parse_time(item["end_date"]),
            duration_seconds=item["duration"],
        )


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
