"""Replays a quarantine in a separate process that kills or stops itself at a point, or lacks protections."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from deltaworks.control import paths
from deltaworks.control.records.prepared import PreparedReplay, PreparedReplays
from deltaworks.recovery.quarantine import replay as quarantine_replay
from deltaworks.recovery.quarantine import replay_commit
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step
from tests.unit.recovery.replay_harness import ReplayHarness


def switch_off(names: str) -> None:
    """Disables protections, given with plus signs between their names, and the look-up of rows already in a table.

    Raises:
        KeyError: no protection has this name.
    """
    for name in filter(None, names.split("+")):
        {"prepared": _prepared, "steps": _steps}[name]()
        _blindly()


def _prepared() -> None:
    """Every run prepares its own replay and ignores an interrupted one."""

    def put(self: Any, replay: PreparedReplay) -> bool:
        self._records._objects.put(paths.prepared_replay(replay.pipeline, replay.ordinal), replay.encode())
        return True

    PreparedReplays.create = put  # type: ignore[method-assign]
    PreparedReplays.read = lambda self, ordinal: None  # type: ignore[method-assign]


def _steps() -> None:
    """A part of the replay is committed without a look-up whether it has already landed."""
    plain, count = replay_commit.commit_step, iter(range(os.getpid() * 1_000, 1 << 40))

    def blind(table: Any, actions: Any, *, step: Step, user_metadata: str) -> Any:
        if not step.app_id.endswith("quarantine_replays"):
            step = Step(f"{step.app_id}/{next(count)}", 1)
        return plain(table, actions, step=step, user_metadata=user_metadata)

    replay_commit.commit_step = blind  # type: ignore[assignment]


def _blindly() -> None:
    def missing_from(self: Any, table: Any) -> Any:
        return [file.add_action() for file in self._files]

    replay_commit.PreparedTableFiles.files_missing_from = missing_from  # type: ignore[method-assign]


def main(root: str, spec: str, point: str, off: str) -> None:
    """Replays everything. `point` is where the process dies, or pauses with the prefix `stop:`; `-` for nowhere."""
    paused: list[str] = []

    def hit(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)
        if f"stop:{reached}" == point and not paused:
            paused.append(reached)
            os.kill(os.getpid(), signal.SIGSTOP)

    switch_off(off)
    # Exclusion must not depend on the lease, so the lease is disabled here.
    quarantine_replay.exclusive_reread = lambda *_: contextlib.nullcontext()  # type: ignore[assignment, return-value]
    catalog = ReplayHarness(Path(root)).catalog(PipelineSpec.model_validate_json(spec))
    quarantine_replay.replay_quarantine(catalog, "shop", QuarantineFilter(), dry_run=False, slice_rows=50, fault=hit)


if __name__ == "__main__":
    main(*sys.argv[1:])
