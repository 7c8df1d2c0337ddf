"""Airflow's REST API as people use it: they look at pools and at what a task asks, and answer it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from deltaworks.operations.airflow_api import AirflowApi


@dataclass(frozen=True, slots=True)
class Slot:
    """A task that ran or runs, and the pool a slot of which it has."""

    dag_id: str
    task_id: str
    pool: str
    start: datetime
    end: datetime | None


class People(AirflowApi):
    """The client of this project with what only people ask of Airflow."""

    def question(self, dag_id: str, run_id: str, task_id: str) -> Mapping[str, Any] | None:
        """What a task asks and how it was answered; None before it has asked."""
        answer = self._request("GET", _question(dag_id, run_id, task_id), missing_ok=True)
        return answer if answer is None else dict(answer)

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str, *, seconds: float = 240.0) -> None:
        """Choose one of the options, and again where the task asks again.

        An answer that comes before the scheduler has heard that the task asks counts as a failure of the task, and
        its next try asks anew.
        """
        end, body = time.monotonic() + seconds, {"chosen_options": [option], "params_input": {}}
        while time.monotonic() < end:
            asked = self.question(dag_id, run_id, task_id)
            if asked is not None and not asked["response_received"]:
                self._request("PATCH", _question(dag_id, run_id, task_id), json=body, conflict_ok=True)
            states = {task.task_id: task.state for task in self.task_instances(dag_id, run_id)}
            if states[task_id] in ("success", "failed"):
                return
            time.sleep(1)
        raise AssertionError(f"{run_id} has not taken the answer {option!r} to {task_id} within {seconds:.0f} s")

    def mark_successful(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Set the state of a task by hand, as the button of the UI does, without what comes before and after it."""
        body = {"new_state": "success"}
        self._request("PATCH", f"{_run(dag_id, run_id)}/taskInstances/{task_id}", json=body)

    def occupied(self, pool: str) -> tuple[int, int]:
        """How many slots of a pool are taken, and how many it has."""
        found = self._get(f"/pools/{pool}")
        return int(found["occupied_slots"]), int(found["slots"])

    def resize(self, pool: str, slots: int) -> None:
        """Give a pool another number of slots."""
        self._request(
            "PATCH",
            f"/pools/{pool}",
            params={"update_mask": "slots"},
            json={"pool": pool, "slots": slots, "include_deferred": False},
        )

    def slots(self, dag_id: str, run_id: str) -> list[Slot]:
        """The tasks of a run that have begun. One that is skipped takes no slot."""
        found = self._get(f"{_run(dag_id, run_id)}/taskInstances", limit=100)["task_instances"]
        return [
            Slot(
                dag_id=dag_id,
                task_id=item["task_id"],
                pool=item["pool"],
                start=datetime.fromisoformat(item["start_date"]),
                end=datetime.fromisoformat(item["end_date"]) if item["end_date"] else None,
            )
            for item in found
            if item["start_date"] is not None and item["state"] != "skipped"
        ]


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _question(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run(dag_id, run_id)}/taskInstances/{task_id}/-1/hitlDetails"
