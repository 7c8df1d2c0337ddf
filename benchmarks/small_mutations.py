"""`small_mutations`: a mutation batch of a few hundred requests, as a process without Spark and as a submitted job.

Both implementations are processes, measured from start to end, on a copy of one lake on local disk: a table partitioned
by organisation with its requests, names, intervals and notifications. The number of changed rows is verified.
`cpu_seconds` is the CPU time of a process and its JVM; compare this value on a busy machine.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.project import declare_project
from benchmarks.scratch_folders import copy_template, scratch_folder
from benchmarks.spark_submit import link_library, submit
from deltaworks.operations.base import OPERATIONS_MODULE

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

_ROOT = Path(__file__).resolve().parents[1]
PIPELINE, DATA, REQUESTS = "crm", "activities", "requests"
_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_ROWS, _REQUESTS, _ORGANISATIONS = 40_000, 400, 40
_CONTACTS = 250
#: Of ten requests, by operation; the others are renames.
_OPERATIONS = ("update", "update", "merge", "delete", "rename_name")


def run(options: Options) -> list[Result]:
    """Lands rows and requests once, and applies the requests to a copy in each repetition."""
    with _landed(options) as template:
        changed: dict[str, int] = {}
        comparison = Comparison(
            metric="batch_by_process_vs_spark_submit",
            ours=Side("process", _Batch(template, changed, by_spark=False)),
            other=Side("spark_submit", _Batch(template, changed, by_spark=True)),
            sizes={"rows": _ROWS, "requests": _REQUESTS, "organisations": _ORGANISATIONS},
        )
        results = measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
        if len(set(changed.values())) != 1 or not all(changed.values()):
            raise RuntimeError(f"the implementations changed different numbers of rows: {changed}")
        return results


@contextmanager
def _landed(options: Options) -> Iterator[Path]:
    with scratch_folder("small_mutations") as root:
        catalog = small_project(root)
        options.progress(f"small_mutations: {_ROWS:,} rows of {_ORGANISATIONS} organisations, {_REQUESTS} requests")
        _append(catalog, DATA, [_row(number) for number in range(_ROWS)])
        _append(catalog, REQUESTS, [_request(number) for number in range(_REQUESTS)])
        _append(catalog, "notifications", [])
        yield root


def _row(number: int) -> dict[str, Any]:
    contact = f"c{number % _CONTACTS}"
    values = {"contact_id": contact, "origin_contact_id": contact, "stage": "new", "origin_stage": "new"}
    return {"event_name": "activity", "time": number * 60, "org_id": f"o{number % _ORGANISATIONS}", **values}


def _request(number: int) -> dict[str, Any]:
    op = _OPERATIONS[number % 10] if number % 10 < len(_OPERATIONS) else "rename"
    contact = f"c{number % _CONTACTS}"
    return {
        "event_name": "request",
        "time": _ROWS * 30 + number,
        "org_id": f"o{number % _ORGANISATIONS}",
        "op": op,
        "id": contact,
        "new_id": {"rename": f"r{number}", "merge": f"c{(number + _ORGANISATIONS) % _CONTACTS}"}.get(op),
        "name": f"Contact {number}" if op == "rename_name" else None,
        "fields": [("stage", "won")] if op == "update" else None,
        "seq": number,
    }


def _append(catalog: Catalog, table: str, rows: list[dict[str, Any]]) -> None:
    """Appends rows as one batch of a stream would."""
    import pyarrow as pa

    from deltaworks.control import paths
    from deltaworks.control.provenance import user_metadata
    from deltaworks.tables.arrow_types import arrow_schema
    from deltaworks.tables.commit import Step
    from deltaworks.tables.lake import Lake

    lake, declared = Lake(catalog.environment.lake), catalog.pipeline(PIPELINE).table(table)
    schema, key = arrow_schema(declared.column_types()), paths.table(PIPELINE, table)
    metadata = user_metadata(pipeline=PIPELINE, batch=1, operation="ingest")
    opened = lake.ensure(key, schema, user_metadata=metadata, partition_by=list(declared.partition_by))
    if not rows:
        return
    filled = []
    for position, row in enumerate(rows):
        time = _START + dt.timedelta(seconds=row.pop("time"))
        envelope = {"event_time": time, "event_date": time.date(), "_ingested_at": _START}
        filled.append({**envelope, "_batch_id": 1, "_seq": 1, "_position": position, "event_id": str(position), **row})
    data = pa.Table.from_pylist(filled, schema=schema)
    lake.append(opened, key, data, step=Step(f"{PIPELINE}/g1/{table}", 1), user_metadata=metadata)


def small_project(root: Path) -> Catalog:
    """Declares the project of a lake at `root`: a mutable table, its requests and notifications."""

    def columns(**types: str) -> list[dict[str, str]]:
        return [{"name": name, "path": name.removeprefix("origin_"), "type": kind} for name, kind in types.items()]

    texts = ("org_id", "contact_id", "origin_contact_id", "stage", "origin_stage")
    request = {"org_id": "string", "op": "string", "id": "string", "new_id": "string", "name": "string"}
    declared = {
        "pipeline": PIPELINE,
        "description": "Activities of contacts, and requests that change them.",
        "event": {"name": {"path": "kind"}, "time": {"path": "time"}, "id": "id"},
        "tables": [
            {
                "name": DATA,
                "when": {"kind": "activity"},
                "columns": columns(**dict.fromkeys(texts, "string")),
                "partition_by": ["org_id"],
                "mutable": {"id": "contact_id", "origin": "origin_contact_id", "fields": {"stage": "origin_stage"}},
            },
            {
                "name": REQUESTS,
                "when": {"kind": "request"},
                "columns": columns(**request, fields="map<string,string>", seq="long"),
            },
            {
                "name": "notifications",
                "columns": columns(org_id="string"),
                "announces": {"table": DATA},
                "partition_by": ["org_id", "ingested_date"],
            },
        ],
        "mutations": {"requests": REQUESTS, "notifications": "notifications"},
    }
    return declare_project(root, declared, landing=root / "landing")


@dataclass(frozen=True, slots=True)
class _Batch:
    """One batch in a separate process."""

    template: Path
    changed: dict[str, int]
    by_spark: bool

    def __call__(self, clock: Clock) -> None:
        with copy_template(self.template) as root:
            # The declarations name the lake's folder.
            catalog = small_project(root)
            link_library(root)
            before = _child_cpu_seconds()
            with (root / "job.log").open("w") as log, clock:
                code = self._run(root, log)
            clock.record(cpu_seconds=_child_cpu_seconds() - before)
            if code:
                raise RuntimeError(f"the batch failed:\n{(root / 'job.log').read_text()[-3_000:]}")
            self.changed["spark_submit" if self.by_spark else "process"] = _changed_rows(catalog)

    def _run(self, root: Path, log: Any) -> int:
        arguments = ("--pipeline", PIPELINE, "--options=" + json.dumps({"dry_run": False}))
        if self.by_spark:
            return submit(root, "mutate_tables", *arguments, log=log).wait()
        arguments = (*arguments[:2], "--options=" + json.dumps({"dry_run": False, "spark": False}))
        command = [sys.executable, "-m", OPERATIONS_MODULE, "mutate_tables", *arguments]
        variables = {"PYTHONPATH": str(_ROOT / "include"), "DELTAWORKS_PROJECT": str(root)}
        return subprocess.run(
            command, env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode


def _child_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _changed_rows(catalog: Catalog) -> int:
    from pyarrow import compute

    from deltaworks.control import paths
    from deltaworks.tables.lake import Lake

    rows = Lake(catalog.environment.lake).rows(paths.table(PIPELINE, DATA), columns=["_mutation"])
    return 0 if rows is None else int(compute.sum(compute.is_valid(rows.column("_mutation"))).as_py() or 0)


BENCHMARK = Benchmark(
    name="small_mutations",
    summary="a mutation batch of 400 requests, as a process without Spark against a submitted job",
    run=run,
    tiny=TinySize(constants={"_ROWS": 800, "_REQUESTS": 40, "_ORGANISATIONS": 4}),
)
