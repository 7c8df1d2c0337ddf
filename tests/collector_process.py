"""Runs a collector as a separate process, `python -m collector`, on free ports, with a test's declaration."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from collector.recovery import RecoveredSpool, recover
from collector.segments import Segment
from collector.spool_folder import SpoolFolder
from deltaworks.events.formats.json import read_events
from deltaworks.specs.catalog import PROJECT_ROOT

KEY = "key of a test"
START_SECONDS = 60


def declaration(**more: Any) -> dict[str, Any]:
    """Returns a collector of one source that stops immediately."""
    source = {
        "pipeline": "games",
        "keys": [{"sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
        "sink": {"kind": "landing"},
    }
    return {
        "collector": "edge",
        "listen": {"host": "127.0.0.1", "port": 0, "metrics_port": 0},
        "limits": {"drain_seconds": 0} | more.pop("limits", {}),
        "sources": {"games": source},
        **more,
    }


class CollectorProcess:
    """Starts and stops a collector with a spool in `folder`."""

    def __init__(
        self,
        folder: Path,
        declared: Mapping[str, Any] | None = None,
        *,
        entry: tuple[str, ...] = ("-m", "collector"),
    ) -> None:
        self.spool = folder / "spool" / "w0"
        self._project = folder / "project"
        self._entry = entry
        (self._project / "include" / "collectors").mkdir(parents=True, exist_ok=True)
        (self._project / "include" / "pipelines" / "games").mkdir(parents=True, exist_ok=True)
        (self._project / "include" / "pipelines" / "games" / "pipeline.yaml").touch()
        file = self._project / "include" / "collectors" / "edge.yaml"
        file.write_text(json.dumps(declared or declaration()))  # JSON is YAML
        self.process: subprocess.Popen[str] | None = None
        self.url = self.metrics_url = ""

    def launch(self) -> subprocess.Popen[str]:
        """Starts the process, which may end by itself."""
        command = [sys.executable, *self._entry, "edge", "--spool", str(self.spool), "--project", str(self._project)]
        variables = {**os.environ, "PYTHONPATH": f"{PROJECT_ROOT / 'include'}:{PROJECT_ROOT}"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables, cwd=PROJECT_ROOT)

    def start(self) -> CollectorProcess:
        """Starts the process and waits until it listens."""
        self.process = self.launch()
        assert self.process.stdout is not None
        marker, _, places = self.process.stdout.readline().partition(" ")
        assert marker == "COLLECTOR_LISTENING", "it listens"
        ports = json.loads(places)
        self.url = f"http://127.0.0.1:{ports['port']}"
        self.metrics_url = f"http://127.0.0.1:{ports['metrics_port']}/metrics"
        return self

    def client(self, **more: Any) -> httpx2.Client:
        """Returns a client with the write key."""
        return httpx2.Client(base_url=self.url, auth=(KEY, ""), timeout=30, **more)

    def kill(self) -> None:
        """Ends the process with kill -9."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> int:
        """Ends the process with SIGTERM; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def recover_spool(self) -> RecoveredSpool:
        """Returns the recovery result of the spool after the process ended."""
        folder = SpoolFolder.acquire(self.spool)
        try:
            return recover(folder)
        finally:
            folder.close()

    def spooled_events(self) -> list[Any]:
        """Returns the events of the spool as the lake's parser reads them, in order, after the process ended."""
        self.recover_spool()
        segments = sorted(self.spool.glob("seg-*.wal"))
        return [
            value
            for path in segments
            for frame in Segment.open(path).frames()
            for value, _ in read_events(frame.payload)
        ]
