"""Names in the docs exist: files, DAGs and tasks, spec keys, variables, metrics, routes, and other identifiers.

Each kind has a check that lists the wrong names of a text. Names of other software are recognised by prefixes or by
their form, never one by one. Names that a page defines itself, in the code of its examples, exist.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from collector.request_handler import BODY_FORMS
from deltaworks.console import application, widget_streams
from deltaworks.console.actions import routes
from deltaworks.console.pages.registry import PAGES
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.groups import GROUP_KIND
from deltaworks.specs.pipeline_sections import ArchiveSpec, HealthLimitsSpec
from tests.unit.documented_keys import DOCS, nested_specs, resolves, undocumented_keys, unknown_rows
from tests.unit.test_documents import ROOT, code_in, module_exists, offenders

Check = Callable[[str, Path], list[str]]
#: Prefixes of keys of other software: Delta, Hadoop and Kafka. Those of Spark are told by their form.
FOREIGN_KEYS = ("delta.", "fs.", "retention.", "message.")
#: Prefixes of addresses of other software: Airflow and the operating system.
FOREIGN_ROUTES = ("/api", "/proc", "/dev/", "/opt/", "/tmp", "/var/", "/etc/")
#: Owners that make a name after them one of other software: "pandas' `merge_asof`".
OWNERS = ("Airflow", "AWS", "Delta", "DuckDB", "Kafka", "pandas", "Polars", "Spark", "Trino")


def inline_code(text: str) -> list[str]:
    """Returns the code within sentences and tables, without blocks of code, names of other software, and values of
    options, which are chosen by the reader.
    """
    sentences = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    own = re.sub(rf"\b(?:{'|'.join(OWNERS)})(?:'s?) `[^`\n]+`", "", sentences)
    return [re.sub(r"(--[a-z-]+) [^\s-]\S*|\$[A-Z_]+/\S+", r"\1", code) for code in re.findall(r"`([^`\n]+)`", own)]


def blocks(text: str) -> str:
    """Returns the blocks of code of a text, whose examples define names."""
    return "\n".join(re.findall(r"```.*?```", text, flags=re.DOTALL))


@cache
def tracked() -> tuple[str, ...]:
    """Returns the files of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return tuple(name for name in listed if (ROOT / name).is_file())


@cache
def source(*folders: str) -> str:
    """Returns the text of the files below these folders, or of all but the docs and tests."""
    kinds = {".py", ".json", ".yaml", ".yml", ".toml", ".sh", ".html", ".js", ".md", ".xml", ".sql", ".example", ""}
    excluded = ("docs/", "tests/", "benchmarks/", "CHANGELOG", "README", "CONTRIBUTING")
    this_file = "tests/unit/test_documented_names.py"  # it contains wrong names
    names = [
        name
        for name in tracked()
        if name != this_file and (name.startswith(folders) if folders else not name.startswith(excluded))
    ]
    return "\n".join((ROOT / name).read_text(errors="replace") for name in names if Path(name).suffix in kinds)


@cache
def words(*folders: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", source(*folders)))


# Files

FILE = re.compile(
    r"(?<![\w./*{}…$:-])((?:(?:[\w.-]|<[^<>\s]+>)+/)*(?:[\w.-]|<[^<>\s]+>)+"
    r"\.(?:py|md|html|ya?ml|toml|json|lock|env|xml|sh|txt|sql|cfg))(?![\w.*(])"
)


def missing_files(text: str, document: Path) -> list[str]:
    names = {name for code in inline_code(text) if "://" not in code for name in FILE.findall(code)}
    return sorted(name for name in names if not file_exists(name, text, document))


def file_exists(name: str, text: str, document: Path) -> bool:
    literals = [re.escape(literal) for literal in re.split(r"<[^<>]+>", name)]
    pattern = re.compile("(?:.*/)?" + "[^/]+".join(literals))
    if any(pattern.fullmatch(path) for path in tracked()) or (document.parent / name).exists():
        return True
    return name in blocks(text) or (not name.endswith((".py", ".md")) and _is_written(name))


def _is_written(name: str) -> bool:
    """Whether programs write such a file: `prepared/000042.done.json` as `.done.json`, `files-<table>.json` as
    `files-{`, and `annotations/<time>.json` as `annotations/`.
    """
    folder, _, base = name.rpartition("/")
    literal = re.sub(r"^(?:g?\d+|<[^<>]+>)", "", base)
    first = re.match(r"[a-z_]+-(?=.*\.)", base)
    if first is not None and ("<" in base or f"{first[0]}{{" in source()):
        return f"{first[0]}{{" in source()
    if "<" not in literal and not re.fullmatch(r"\.\w+", literal):
        return literal in source()
    last_folder = re.sub(r"(?:/?(?:<[^<>]+>|g?\d+))+$", "", folder).rpartition("/")[2]
    return bool(last_folder) and re.search(rf"[\"/]{last_folder}[\"/]", source()) is not None


# DAGs and tasks

DAG = re.compile(r"(?<![\w.])(<\w+>|[a-z]\w*?|NAME)__([a-z][a-z_]*)(?:\.([a-z_]+))?(?![\w(])")
TASK = re.compile(r"\b(?:[Ss]teps?|[Tt]asks?)(?: of)? `([a-z_]+)`")


@cache
def dag_kinds() -> set[str]:
    declared = re.findall(r"\bkind=\"([a-z_]+)\"", source("include/deltaworks/airflow/"))
    return {*declared, GROUP_KIND, *(operation.kind for operation in OPERATIONS.values())}


@cache
def tasks() -> set[str]:
    airflow = source("include/deltaworks/airflow/", "include/deltaworks/operations/base.py")
    constants = [
        name
        for line in re.findall(r"^[A-Z_, ]*_TASK\b.*", airflow, re.MULTILINE)
        for name in re.findall(r"\"(\w+)\"", line)
    ]
    return {*OPERATIONS, *re.findall(r"task_ids?=\(?\"(\w+)\"", airflow), *constants}


def unknown_dags(text: str, _: Path) -> list[str]:
    defined = set(re.findall(r"\w+", blocks(text)))
    unknown = []
    for code in inline_code(text):
        for subject, kind, task in DAG.findall(code):
            if f"{subject}.{kind}" in text:  # the name of a table of another pipeline in SQL
                continue
            if kind not in dag_kinds() | defined or (task and task not in tasks()):
                unknown.append(f"{subject}__{kind}" + (f".{task}" if task else ""))
    known = tasks() | defined
    return sorted({*unknown, *(name for name in TASK.findall(text) if name not in known)})


# Spec keys

KEY = re.compile(r"(?<![\w./:@<>-])([a-z][a-z_]*(?:\.[a-z][a-z_]*)+)(?![\w(/.*<])")


def unknown_keys(text: str, document: Path) -> list[str]:
    unknown = []
    for code in inline_code(text):
        for key in KEY.findall(code):
            first = key.partition(".")[0]
            is_key = first in nested_specs() and not key.startswith(FOREIGN_KEYS)
            if not is_key or resolves(key) or _is_other_name(key, text, document):
                continue
            unknown.append(key)
    return sorted(set(unknown))


def _is_other_name(name: str, text: str, document: Path) -> bool:
    # The prefix of views in SQL: `gold.games.daily` for the table `games.daily`.
    is_view = name.startswith("gold.") and name.count(".") == 2 and f"`{name.removeprefix('gold.')}`" in text
    is_file = FILE.fullmatch(name) is not None and file_exists(name, text, document)
    return is_view or _is_spark_setting(name) or is_file or module_exists(name) or module_exists(f"deltaworks.{name}")


def _is_spark_setting(name: str) -> bool:
    """Whether a name has the form of Spark's settings. Keys of the section `spark` have one more word."""
    return name.startswith("spark.") and (name.count(".") >= 2 or name == "spark.authenticate")


# Environment variables

VARIABLE = re.compile(r"(?<!env:)(?<!\w)(DELTAWORKS_[A-Z0-9_]+)")


@cache
def variable_prefixes() -> tuple[str, ...]:
    """Returns the beginnings of variables whose end is chosen by the reader."""
    quoted = re.findall(r"[\"']DELTAWORKS_[A-Z_]+_(?=[\"'{<])", source())
    return tuple({prefix[1:] for prefix in quoted})


def unknown_variables(text: str, _: Path) -> list[str]:
    named = set(VARIABLE.findall(code_in(text)))
    return sorted(name for name in named if name not in words() and not name.startswith(variable_prefixes()))


# Metrics

METRIC = re.compile(r"(?<![\w.])(deltaworks_[a-z]\w*)")


def unknown_metrics(text: str, _: Path) -> list[str]:
    named = set(METRIC.findall(code_in(text)))
    known = words("include/", "docker", "docs/reference/grafana/")
    return sorted(
        name
        for name in named
        if name not in known and not (name.endswith("_") and any(each.startswith(name) for each in known))
    )


# Addresses of the console and of the collector

ROUTE = re.compile(r"^(?:(?:GET|POST) )?(/[a-z][\w<>./-]*)(?:\?\S*)?$")


@cache
def console_routes() -> tuple[re.Pattern[str], ...]:
    declared = [*(page.route for page in PAGES), application.ROUTE, routes.ROUTE, f"{routes.ROUTE}/runs/{{run_id}}"]
    declared.append(widget_streams.ROUTE)
    return tuple(
        re.compile("(?:/deltaworks)?" + re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route))) for route in (*declared, "/")
    )


def unknown_routes(text: str, _: Path) -> list[str]:
    named = {match[1] for code in inline_code(text) if (match := ROUTE.match(code))}
    return sorted(
        name
        for name in named
        if not name.startswith(FOREIGN_ROUTES)
        and not any(route.fullmatch(name.rstrip("/") or "/") for route in console_routes())
        and name not in BODY_FORMS
        and f"{re.sub('<.*', '', name)}" not in source()
    )


# Identifiers

NAME = re.compile(r"(?<![\w<$])([a-z]\w*_\w+)(?![\w>])")


def unknown_names(text: str, _: Path) -> list[str]:
    # `[section] option` is an option of Airflow.
    codes = [code for code in inline_code(text) if not re.match(r"\[\w+\] ", code)]
    named = {name for code in codes for name in NAME.findall(code) if "__" not in name}
    known = words() | words("tests/", "benchmarks/") | set(re.findall(r"\w+", blocks(text)))
    # A page may name a common beginning once: `deltaworks_collector_`.
    beginnings = re.findall(r"`(\w+_)`", text)
    named = {name for name in named if not any(beginning + name in known for beginning in beginnings)}
    return sorted(name for name in named - known - stems() if not _is_composed(name))


@cache
def stems() -> frozenset[str]:
    return frozenset(Path(path).stem for path in tracked())


def _is_composed(name: str) -> bool:
    """Whether the code composes a name: `f"control_{verb}"`, or `f"{PREFIX}_sink_errors"`, whose counters end with
    `_total`.
    """
    if f'}}_{name.removesuffix("_total")}"' in source():
        return True
    parts = [(name[: at.start()], name[at.end() :]) for at in re.finditer("_", name)]
    return any(f'"{head}_{{' in source() and tail in words() for head, tail in parts)


CHECKS: dict[str, Check] = {
    "files": missing_files,
    "DAGs and tasks": unknown_dags,
    "keys": unknown_keys,
    "rows of keys": unknown_rows,
    "variables": unknown_variables,
    "metrics": unknown_metrics,
    "addresses": unknown_routes,
    "identifiers": unknown_names,
}


@pytest.mark.parametrize("kind", CHECKS)
def test_every_name_in_the_docs_exists(kind: str) -> None:
    assert offenders(CHECKS[kind]) == {}


def test_every_key_of_a_declaration_is_documented() -> None:
    assert undocumented_keys() == []


@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        (
            "files",
            "`entities.py` `mutations/none.py` `docs/none.md` `lease.json` `none.json` `000042.done.json` "
            "`maintenance/none-<table>.json` `florps/<time>.json` `--chart some.html` `$AIRFLOW_HOME/some.py` "
            "`pipeline.yaml`",
            [
                "docs/none.md",
                "florps/<time>.json",
                "maintenance/none-<table>.json",
                "mutations/none.py",
                "none.json",
            ],
        ),
        (
            "DAGs and tasks",
            "`games__maintenance` `<relay>__relay` `games__compaction` `games__gold.rebuild_gold` "
            "`games__gold.rebuild` step `vacuum_tables`, task `compact_tables`; `games.daily` is `games__daily`",
            ["compact_tables", "games__compaction", "games__gold.rebuild"],
        ),
        (
            "keys",
            "`maintenance.time_travel_hours` `maintenance.travel_hours` `stream.trigger_seconds: 5` "
            "`event.time.zones` `checks.intervals` `spark.secret` `spark.cores` `spark.sql.ansi.enabled` "
            "`delta.checkpointInterval` `mutations.apply` `sys.modules`",
            ["event.time.zones", "maintenance.travel_hours", "spark.cores"],
        ),
        (
            "variables",
            "`DELTAWORKS_HOME` `DELTAWORKS_HOUSE=1` `DELTAWORKS_CONNECTION_LAKE_ACCESS_KEY` `env:DELTAWORKS_CHOSEN`",
            ["DELTAWORKS_HOUSE"],
        ),
        (
            "metrics",
            "`deltaworks_stream_lag_seconds` `deltaworks_stream_lag_hours` `deltaworks_collector_` `deltaworks_none_`",
            ["deltaworks_none_", "deltaworks_stream_lag_hours"],
        ),
        (
            "addresses",
            "`/deltaworks/streams/<pipeline>` `/tables/games/events` `/lineage?of=a` `/table/games` `/v1/track` "
            "`/v2/track` `/api/v2/dags` `/ready`",
            ["/table/games", "/v2/track"],
        ),
        (
            "identifiers",
            "`max_turn_seconds` `max_turn_minutes` `control_get` `control_florps` pandas' `merge_asof` "
            "`[core] dagbag_import_timeout`\n```\nown_name\n```\n`own_name`",
            ["control_florps", "max_turn_minutes"],
        ),
    ],
)
def test_a_wrong_name_is_found(kind: str, text: str, wrong: list[str]) -> None:
    assert CHECKS[kind](text, ROOT / "README.md") == wrong


def test_a_wrong_row_and_an_undocumented_key_are_found() -> None:
    page = DOCS / "reference" / "pipeline" / "operations.md"
    table = "## Maintenance\n\n| key | meaning |\n|---|---|\n| `schedule`, `scheduled` | |\n| `health.stale` | |\n\n"
    of_section = "| key of `stream_groups.NAME` | |\n|---|---|\n| `driver_memory` | |\n| `driver_cores` | |\n"

    assert unknown_rows(table + of_section, page) == ["scheduled", "health.stale", "driver_cores"]

    section = "reference/pipeline/operations.md#health"
    assert undocumented_keys({section: (ArchiveSpec, HealthLimitsSpec)})[:2] == [
        f"{section}: ArchiveSpec.retain_days",
        "no section: AlertmanagerChannelSpec",
    ]
