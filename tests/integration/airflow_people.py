"""Client for Airflow's REST API with the actions of people: pools, approvals and their answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from deltaworks.airflow_client.api import AirflowApi

#: How long people take to read a question.
_READING_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Slot:
    """A task that runs or has run, and its pool."""

    dag_id: str
    task_id: str
    pool: str
    start: datetime
    end: datetime | None


class People(AirflowApi):
    """The product's API client, extended by what only people do in Airflow."""

    def settle(self, dag_id: str, run_id: str, task_id: str, option: str, *, seconds: float = 240.0) -> None:
        """Chooses an option, and again if the task asks again, until the task has ended.

        If the answer arrives before the scheduler knows that the task waits, Airflow counts a failure of the task, and
        its next try asks again. So the answer comes no sooner than a person could have read the question.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            asked = self.question(dag_id, run_id, task_id)
            if asked is not None and not asked["response_received"]:
                time.sleep(_READING_SECONDS)
                self.answer(dag_id, run_id, task_id, option)
            states = {task.task_id: task.state for task in self.task_instances(dag_id, run_id)}
            if states[task_id] in ("success", "failed"):
                return
            time.sleep(1)
        raise AssertionError(f"{run_id} has not taken the answer {option!r} to {task_id} within {seconds:.0f} s")

    def mark_successful(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Marks a task as successful, like the UI's button, without upstream and downstream tasks."""
        body = {"new_state": "success"}
        self._request("PATCH", f"{_run(dag_id, run_id)}/taskInstances/{task_id}", json=body)

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> tuple[str, ...]:
        """Returns the lines of a task's log; empty if there is no readable log."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}"
        answer = self._request("GET", path, params={"full_content": True}, missing_ok=True) or {"content": []}
        return tuple(str(line["event"] if isinstance(line, dict) else line) for line in answer["content"])

    def consumed_events(self, dag_id: str, run_id: str) -> list[Mapping[str, Any]]:
        """Returns the asset events that a run was created for, oldest first."""
        events: list[Mapping[str, Any]] = self._get(f"{_run(dag_id, run_id)}/upstreamAssetEvents")["asset_events"]
        return sorted(events, key=lambda event: event["timestamp"])

    def clear_run(self, dag_id: str, run_id: str, *, task_ids: Sequence[str] = (), reset: bool = True) -> None:
        """Clears all tasks of a run, or the given ones.

        Args:
            reset: queues the run again, like the UI's button.
        """
        body: dict[str, Any] = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": reset}
        if task_ids:
            body["task_ids"] = list(task_ids)
        self._request("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)

    def queue_run(self, dag_id: str, run_id: str) -> None:
        """Marks a run as queued, like the UI's button."""
        self._request("PATCH", _run(dag_id, run_id), json={"state": "queued"})

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """Deletes a run with its tasks. Airflow refuses it for a run under way, which people mark as failed before."""
        self._request("PATCH", _run(dag_id, run_id), json={"state": "failed"})
        self._request("DELETE", _run(dag_id, run_id))

    def results(self, dag_id: str, run_id: str, task_id: str) -> list[Mapping[str, Any]]:
        """Returns the results of the task's job."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{task_id}/xcomEntries/results"
        value = self._get(path, stringify=False)["value"]
        return [dict(result) for result in value]

    def run(self, dag_id: str, run_id: str, conf: Mapping[str, Any], *, seconds: float) -> None:
        """Submits a form and waits until its run has succeeded."""
        self.trigger(dag_id, conf=conf, run_id=run_id)
        ended = self.wait_for_run(dag_id, run_id, timeout_seconds=seconds)
        assert ended.state == "success", (dag_id, run_id, self.task_instances(dag_id, run_id))

    def occupied(self, pool: str) -> tuple[int, int]:
        """Returns the used and the total slots of a pool."""
        found = self._get(f"/pools/{pool}")
        return int(found["occupied_slots"]), int(found["slots"])

    def resize(self, pool: str, slots: int) -> None:
        """Sets the number of slots of a pool."""
        self._request(
            "PATCH",
            f"/pools/{pool}",
            params={"update_mask": "slots"},
            json={"pool": pool, "slots": slots, "include_deferred": False},
        )

    def slots(self, dag_id: str, run_id: str) -> list[Slot]:
        """Returns the started tasks of a run. Skipped tasks use no slot."""
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
