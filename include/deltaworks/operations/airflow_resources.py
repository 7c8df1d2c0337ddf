"""What Airflow's REST API answers, as values: its health, DAGs, runs, tasks, questions to people, and import errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

FINISHED_STATES = frozenset({"success", "failed"})


@dataclass(frozen=True, slots=True)
class Component:
    """One part of Airflow as it reports itself; a part that never ran has no heartbeat."""

    status: str
    heartbeat: datetime | None

    @property
    def is_healthy(self) -> bool:
        """Whether Airflow calls it healthy. It keeps doing so for 30 s after the process died."""
        return self.status == "healthy"

    @classmethod
    def from_api(cls, answer: Mapping[str, Any], name: str) -> Self:
        """The part of that name in an answer about all."""
        part = answer.get(name) or {}
        return cls(part.get("status") or "unknown", _parse_time(part.get(f"latest_{name}_heartbeat")))


@dataclass(frozen=True, slots=True)
class Health:
    """The health Airflow reports of its parts."""

    metadatabase: Component
    scheduler: Component
    dag_processor: Component
    triggerer: Component

    @property
    def is_healthy(self) -> bool:
        """Whether every part is."""
        return all(getattr(self, item.name).healthy for item in fields(self))

    @classmethod
    def from_api(cls, answer: Mapping[str, Any]) -> Self:
        """The health of an answer."""
        return cls(**{item.name: Component.from_api(answer, item.name) for item in fields(cls)})


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG Airflow knows; `file` is that of its code, from the folder of DAGs on."""

    dag_id: str
    is_paused: bool
    tags: tuple[str, ...]
    has_import_errors: bool
    file: str = ""

    @classmethod
    def from_api(cls, item: Mapping[str, Any]) -> Self:
        """The DAG of an answer."""
        tags = tuple(tag["name"] for tag in item["tags"])
        return cls(
            item["dag_id"], item["is_paused"], tags, item["has_import_errors"], item.get("relative_fileloc") or ""
        )


@dataclass(frozen=True, slots=True)
class DagImportError:
    """A DAG file that does not import."""

    filename: str
    stack_trace: str

    @property
    def last_line(self) -> str:
        """The error itself, which a trace ends with."""
        lines = [line.strip() for line in self.stack_trace.splitlines() if line.strip()]
        return lines[-1] if lines else "no trace"


@dataclass(frozen=True, slots=True)
class DagRun:
    """One run of a DAG."""

    dag_id: str
    run_id: str
    state: str
    start: datetime | None
    end: datetime | None
    conf: Mapping[str, Any]
    note: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether it ended, one way or the other."""
        return self.state in FINISHED_STATES

    @classmethod
    def from_api(cls, item: Mapping[str, Any]) -> Self:
        """The run of an answer."""
        start, end = _parse_time(item["start_date"]), _parse_time(item["end_date"])
        conf, note = item["conf"] or {}, item.get("note") or ""
        return cls(item["dag_id"], item["dag_run_id"], item["state"], start, end, conf, note)


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """One task of a run, as of its latest try. `state` is None before it is scheduled."""

    task_id: str
    state: str | None
    try_number: int
    start: datetime | None
    end: datetime | None
    duration_seconds: float | None

    @classmethod
    def from_api(cls, item: Mapping[str, Any]) -> Self:
        """The task of an answer."""
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
