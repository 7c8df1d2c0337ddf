"""The project in which the former code leaves interrupted work, and what lands in it.

Both releases run it, so it imports neither. Four pipelines read one bucket: `torn` is interrupted between commits of
a batch, `rolled` in a rollback, `reread` in a reprocess and `crm` in a mutation batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STREAMS = ("torn", "rolled", "reread")
ORDERS, LOGINS = 10, 4
_STREAM = {"tasks_per_batch": 2, "lease_ttl_seconds": 3}
_SOURCE = {"kind": "cloud_files", "relay": "landing", "bucket": "landing"}


def _shop(name: str) -> dict[str, Any]:
    return {
        "pipeline": name,
        "description": "orders and logins",
        "owner": "tests",
        "source": _SOURCE | {"prefix": "shop/"},
        "event": {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": "id"},
        "tables": [
            {
                "name": "orders",
                "when": {"name": "order"},
                "columns": [{"name": "amount", "path": "amount", "type": "decimal(12,2)", "required": True}],
            },
            {
                "name": "logins",
                "when": {"name": "login"},
                "columns": [{"name": "id", "path": "id", "type": "string"}],
            },
        ],
        "stream": _STREAM,
    }


def _crm() -> dict[str, Any]:
    data = ["org_id", "contact_id", "origin_contact_id"]
    requests = {"org_id": "string", "op": "string", "id": "string", "new_id": "string", "name": "string"}
    requests |= {"fields": "map<string,string>", "seq": "long"}
    return {
        "pipeline": "crm",
        "description": "rows that requests change",
        "owner": "tests",
        "source": _SOURCE | {"prefix": "crm/"},
        "event": {"name": {"path": "kind"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": "id"},
        "tables": [
            {
                "name": "activities",
                "when": {"kind": "activity"},
                "columns": [{"name": name, "path": name.removeprefix("origin_"), "type": "string"} for name in data],
                "partition_by": ["org_id"],
                "mutable": {"id": "contact_id", "origin": "origin_contact_id", "fields": {}},
            },
            {
                "name": "requests",
                "when": {"kind": "request"},
                "columns": [
                    {"name": name, "path": f"request.{name}" if name == "id" else name, "type": kind}
                    for name, kind in requests.items()
                ],
            },
            {
                "name": "notifications",
                "announces": {"table": "activities"},
                "columns": [{"name": "org_id", "path": "org_id", "type": "string"}],
                "partition_by": ["org_id", "ingested_date"],
            },
        ],
        "mutations": {"requests": "requests", "notifications": "notifications"},
        "stream": _STREAM,
    }


def write_project(root: Path) -> None:
    """The declarations, with lake and landing bucket in the same folder."""
    files: dict[str, Any] = {
        "environments/local.yaml": {
            "environment": "local",
            "lake": {"root": f"file://{root}/lake"},
            "landing": {"root": f"file://{root}/landing"},
            "messaging": {},
        },
        "relays/landing.yaml": {
            "relay": "landing",
            "buckets": ["landing"],
            # Every run of the relay lists anew.
            "listing": {"backfill_interval_hours": 1e-5},
            "lease_ttl_seconds": 3,
        },
        "pipelines/crm/pipeline.yaml": _crm(),
        **{f"pipelines/{name}/pipeline.yaml": _shop(name) for name in STREAMS},
    }
    for path, content in files.items():
        (root / "include" / path).parent.mkdir(parents=True, exist_ok=True)
        # JSON is YAML too.
        (root / "include" / path).write_text(json.dumps(content))


def _write(root: Path, key: str, content: bytes) -> None:
    path = root / "landing" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole at once, as an object store puts it.
    path.with_suffix(".part").write_bytes(content)
    path.with_suffix(".part").rename(path)


def land(root: Path, wave: int) -> None:
    """One object of each prefix: orders and logins with a misfit and broken bytes, and contacts with a renaming."""
    time = 1_700_000_000 + wave * 3_600
    orders = [{"name": "order", "id": f"o{wave}.{n}", "time": time, "amount": n + 0.5} for n in range(ORDERS)]
    logins = [{"name": "login", "id": f"l{wave}.{n}", "time": time} for n in range(LOGINS)]
    misfit = {"name": "order", "id": f"m{wave}", "time": time, "amount": "much"}
    _write(root, f"shop/{wave:03}.json", _lines([*orders, *logins, misfit]) + b'{"broken"')
    rows = [
        {"kind": "activity", "id": f"a{wave}.{n}", "time": time, "org_id": "acme", "contact_id": f"c{wave}.{n}"}
        for n in range(6)
    ]
    rename = {"op": "rename", "request": {"id": f"c{wave}.1"}, "new_id": f"renamed{wave}", "seq": wave}
    request = {"kind": "request", "id": f"r{wave}", "time": time + 60, "org_id": "acme", **rename}
    _write(root, f"crm/{wave:03}.json", _lines([*rows, request]))


def _lines(events: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def expected_ids(waves: Iterable[int]) -> dict[str, Counter[str]]:
    """The ids of the events that each table of a stream has to have, each once."""
    waves = list(waves)
    return {
        "orders": Counter(f"o{wave}.{n}" for wave in waves for n in range(ORDERS)),
        "logins": Counter(f"l{wave}.{n}" for wave in waves for n in range(LOGINS)),
    }


def expected_quarantine(waves: Iterable[int]) -> Counter[tuple[str, int]]:
    """Object and position of what each landed object leaves in quarantine: the misfit and the broken rest."""
    first = ORDERS + LOGINS
    return Counter((f"shop/{wave:03}.json", place) for wave in waves for place in (first, first + 1))


def expected_contacts(waves: Iterable[int]) -> dict[str, str]:
    """Who each activity belongs to once all requests are applied."""
    return {f"a{wave}.{n}": f"renamed{wave}" if n == 1 else f"c{wave}.{n}" for wave in waves for n in range(6)}
