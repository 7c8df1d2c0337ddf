"""`console_airflow`: Airflow's API server while ten people read the console: 30 pipelines, 1,000 tables.

- `api_version_vs_idle`: the 95th percentile of `/api/v2/version` while ten readers with different logins request pages
  without a pause, against the same server without readers.
- `api_version_vs_idle_inside`: the same when the API server renders the pages itself
  (`DELTAWORKS_CONSOLE_PROCESS=off`).
- `pages_vs_inside`: the time per page when one person requests pages in sequence, against rendering inside the API
  server.

Both servers are real `airflow api-server` processes with the plugin and registered DAGs, each with its own metadata
database, over one project. They are measured in turns. Storage is a folder of control objects; Spark is not used.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.console import PIPELINES, TABLES, p95, write_project
from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, measure
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import LocalObjects
from deltaworks.control.summaries.tables import HealthPoint, ScorePenalty, TablesSummary, TableSummary
from sandbox.airflow.settings import airflow_settings, passwords_path
from sandbox.stack.home import StackHome
from sandbox.stack.ports import HOST, choose_ports
from sandbox.stack.secrets import load_or_create_secrets, write_private

READERS, VERSIONS, PAGES = 10, 200, 60
_ROOT = Path(__file__).resolve().parents[1]
_START_SECONDS = 180.0
_VERSION = "/api/v2/version"
#: Registers DAGs in the metadata database, as the DAG processor does after parsing.
_REGISTER_DAGS = """
import sys
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.utils.session import create_session
with create_session() as session:
    session.add(DagBundleModel(name="dags-folder"))
    session.flush()
    for dag_id in sys.argv[1:]:
        session.add(DagModel(dag_id=dag_id, bundle_name="dags-folder", fileloc="dags/x.py", is_paused=False))
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A running API server: its address, and one login token per reader."""

    url: str
    tokens: tuple[str, ...]


def _write_tables(root: Path) -> None:
    """Writes the table summaries of the last nightly run."""
    objects = LocalObjects(root / "lake")
    for number in range(PIPELINES):
        name = f"p{number:02d}"
        tables = tuple(
            TableSummary(
                name=f"t{one}",
                kind="bronze",
                version=812,
                score=40 + (number + one) % 60,
                costs=(ScorePenalty(name="small_files", weight=40, cost=22.0, reason="71 % of its files are small"),),
                files=9_120,
                bytes=1 << 40,
                rows=10**9,
                small_files=6_475,
                last_write_at=iso_now(),
                nights=tuple(HealthPoint(date=f"2026-10-{day:02d}", score=50, bytes=1 << 40) for day in range(1, 31)),
            )
            for one in range(TABLES // PIPELINES)
        )
        summary = TablesSummary(pipeline=name, at=iso_now(), tables=tables)
        objects.put(paths.tables_summary(name), summary.encode())


@contextmanager
def api_server(project: Path, folder: Path, **variables: str) -> Iterator[Server]:
    """Runs an API server with the plugin until the block ends."""
    home = StackHome.at(folder, project=_ROOT, dags_folder=_ROOT / "dags")
    home.create()
    secrets, port = load_or_create_secrets(home.secrets_file), choose_ports({})["airflow"]
    people = {f"reader{number}": secrets.admin_password for number in range(READERS)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    environment = {
        **inherited,
        **airflow_settings(home, port=port, keys=secrets),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:viewer" for name in people),
        "PYTHONPATH": str(_ROOT / "include"),
        "DELTAWORKS_PROJECT": str(project),
        "DELTAWORKS_ENVIRONMENT": "local",
        "NO_PROXY": HOST,
        **variables,
    }
    write_private(passwords_path(home), json.dumps(people))
    dags = [*(f"p{number:02d}__stream" for number in range(PIPELINES)), "landing__relay", "deltaworks__health"]
    with (home.logs / "airflow.log").open("wb") as log:
        streams: dict[str, Any] = {"env": environment, "stdout": log, "stderr": subprocess.STDOUT}
        subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, **streams)
        subprocess.run([sys.executable, "-c", _REGISTER_DAGS, *dags], check=True, **streams)
        process = subprocess.Popen([sys.executable, "-m", "airflow", "api-server"], **streams)
        try:
            url = f"http://{HOST}:{port}"
            _await(url, process, home.logs / "airflow.log")
            yield Server(url, tuple(_token(url, name, password) for name, password in people.items()))
        finally:
            process.terminate()
            process.wait(timeout=60)


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx2.get(url + _VERSION, timeout=5).is_success:
                return
        except httpx2.TransportError:
            time.sleep(0.5)
    raise RuntimeError(f"the API server did not start: {log.read_text(errors='replace')[-2_000:]}")


def _token(url: str, name: str, password: str) -> str:
    answer = httpx2.post(f"{url}/auth/token", json={"username": name, "password": password}, timeout=60)
    return str(answer.raise_for_status().json()["access_token"])


def _paths(reader: int) -> tuple[str, ...]:
    """Returns the pages that a reader requests in a loop."""
    pipeline = f"p{(3 * reader) % PIPELINES:02d}"
    return ("/", f"/streams/{pipeline}", "/tables", f"/tables?pipeline={pipeline}", "/alerts", "/costs")


def _page(client: httpx2.Client, path: str) -> float:
    began = time.perf_counter()
    client.get("/deltaworks" + path).raise_for_status()
    return time.perf_counter() - began


def _client(url: str, token: str) -> httpx2.Client:
    return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}", "Accept": "text/html"}, timeout=60)


def read_until(url: str, tokens: tuple[str, ...], ended: Any, response_times: Any) -> None:
    """Requests pages from ten threads without a pause until `ended` is set. Puts an empty list once all threads are
    running, and the response times of all pages at the end.
    """

    def reads(number: int) -> list[float]:
        seconds, paths = [], _paths(number)
        with _client(url, tokens[number]) as client:
            while not ended.is_set():
                seconds.append(_page(client, paths[len(seconds) % len(paths)]))
        return seconds

    with ThreadPoolExecutor(READERS) as pool:
        readers = [pool.submit(reads, number) for number in range(READERS)]
        time.sleep(3.0)
        response_times.put([])
        response_times.put([one for reader in readers for one in reader.result()])


def _versions(server: Server) -> list[float]:
    """Returns response times of the version endpoint for sequential requests 10 ms apart, like heartbeats of tasks."""
    seconds = []
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        for _ in range(VERSIONS):
            began = time.perf_counter()
            client.get(_VERSION).raise_for_status()
            seconds.append(time.perf_counter() - began)
            time.sleep(0.01)
    return seconds


def _record_seconds(clock: Clock, seconds: list[float], **parts: float) -> None:
    clock.seconds = p95(seconds)
    clock.record(p50_seconds=statistics.median(seconds), p95_seconds=p95(seconds), **parts)


@dataclass(frozen=True)
class _ServerMeasurements:
    """The three measurements of one server."""

    name: str
    server: Server

    def idle(self, clock: Clock) -> None:
        _record_seconds(clock, _versions(self.server))

    def with_ten_readers(self, clock: Clock) -> None:
        spawn = multiprocessing.get_context("spawn")
        ended, taken = spawn.Event(), spawn.SimpleQueue()
        # A separate process, so that the readers' own CPU time is not measured as response time of the server.
        readers = spawn.Process(target=read_until, args=(self.server.url, self.server.tokens, ended, taken))
        readers.start()
        taken.get()
        began = time.perf_counter()
        seconds = _versions(self.server)
        ended.set()
        pages: list[float] = taken.get()
        took = time.perf_counter() - began
        readers.join()
        _record_seconds(clock, seconds, page_p95_seconds=p95(pages), pages_per_second=len(pages) / (took + 3.0))

    def pages(self, clock: Clock) -> None:
        with _client(self.server.url, self.server.tokens[0]) as client:
            taken = [_page(client, _paths(0)[number % 6]) for number in range(PAGES)]
        _record_seconds(clock, taken)

    def side(self, what: str) -> Side:
        return Side(f"{what}_{self.name}", getattr(self, what))


def _comparisons(
    separate: _ServerMeasurements, inside: _ServerMeasurements, sizes: Mapping[str, int]
) -> list[Comparison]:
    def against(metric: str, ours: Side, other: Side) -> Comparison:
        return Comparison(metric=metric, ours=ours, other=other, sizes=sizes)

    return [
        against("api_version_vs_idle", separate.side("with_ten_readers"), separate.side("idle")),
        against("api_version_vs_idle_inside", inside.side("with_ten_readers"), inside.side("idle")),
        against("pages_vs_inside", separate.side("pages"), inside.side("pages")),
    ]


def run(options: Options) -> list[Result]:
    """Measures two servers, of which only one gets requests at a time."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltaworks-console-")))
        write_project(root / "project")
        _write_tables(root / "project")
        apart = stack.enter_context(api_server(root / "project", root / "apart"))
        inside = stack.enter_context(api_server(root / "project", root / "inside", DELTAWORKS_CONSOLE_PROCESS="off"))
        sizes = {"pipelines": PIPELINES, "tables": TABLES, "readers": READERS}
        comparisons = _comparisons(_ServerMeasurements("apart", apart), _ServerMeasurements("inside", inside), sizes)
        return measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)


BENCHMARK = Benchmark(
    name="console_airflow",
    summary="response times of Airflow's API server while ten people read the console's pages",
    run=run,
)
