"""A project with many declared pipelines, for example one per tenant of a platform."""

from __future__ import annotations

from pathlib import Path

_KINDS = ("string", "int", "bigint", '"decimal(12,2)"')
_TABLES = ("orders", "refunds", "visits", "sessions")
_COLUMNS = 8


def write_project(root: Path, *, pipelines: int) -> Path:
    """Writes pipelines with four tables of eight columns and a scheduled gold table each, all fed by one relay.

    Only one pipeline gets DAGs for its operations, since those of all pipelines would be 17,000 DAGs.
    """
    include = root / "include"
    _write(
        include / "environments" / "local.yaml",
        f'environment: local\nlake: {{root: "file://{root}/lake"}}\nlanding: {{root: "file://{root}/landing"}}\n'
        "messaging: {}\noperation_dags: [tenant_0000]\n",
    )
    _write(
        include / "relays" / "landing.yaml", "relay: landing\nqueue_url: http://localhost/queue\nbuckets: [landing]\n"
    )
    for number in range(pipelines):
        name = f"tenant_{number:04d}"
        folder = include / "pipelines" / name
        _write(folder / "pipeline.yaml", _pipeline(name))
        _write(folder / "daily.sql", "SELECT event_date, count(*) AS orders FROM orders GROUP BY event_date\n")
    return root


def _pipeline(name: str) -> str:
    columns = "".join(
        f"      - {{name: c{number}, path: params.c{number}, type: {_KINDS[number % len(_KINDS)]}}}\n"
        for number in range(_COLUMNS)
    )
    tables = "".join(f"  - name: {table}\n    when: {{name: {table}}}\n    columns:\n{columns}" for table in _TABLES)
    return (
        f"pipeline: {name}\ndescription: What the shops of a tenant sell\nowner: tenants\n"
        f"source: {{kind: s3_sqs, relay: landing, bucket: landing, prefix: {name}/}}\n"
        f"event: {{name: {{path: name}}, time: {{path: time}}, id: event_id}}\ntables:\n{tables}"
        "gold:\n  lag: 1h\n  tables:\n"
        "    - {name: daily, reads: [orders], partition_by: event_date, sql: daily.sql}\n"
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
