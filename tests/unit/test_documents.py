"""The docs match the project: links, commands, examples, conditions and formats."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from benchmarks.registry import BENCHMARKS
from deltaworks.alerts.deadman import HealthCheckHeartbeat
from deltaworks.alerts.notification import AlertState, Notification
from deltaworks.alerts.raising import Alert
from deltaworks.alerts.sending import Delivery
from deltaworks.control.health.heartbeat import Heartbeat, StopRequest
from deltaworks.control.home import ReaderRecord
from deltaworks.control.locks.lease import LeaseRecord
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.control.records.feeds import DeadLetters, DeliveryRecord, FeedRecord, Position, ReplayRequest
from deltaworks.control.records.feeds import Delivery as FeedDelivery
from deltaworks.control.records.generations import (
    CheckpointRecord,
    Generations,
    LostCommit,
    Rollback,
    StagedRows,
    StartOver,
    TableLoss,
)
from deltaworks.control.records.held_tables import HeldTable, ResumeRequest
from deltaworks.control.records.model import FoldReport, Gain, ModelMetrics, ModelRun, PublishedModel
from deltaworks.control.records.prepared import PreparedBatch, PreparedReplay, PreparedTable
from deltaworks.control.records.remediation import RemediationRecord
from deltaworks.control.records.reprocess import ReprocessPlan, StagedFiles, StagedTable
from deltaworks.control.records.specs import AcceptedChange, CurrentSpec, SpecRecord
from deltaworks.control.summaries.stream import (
    BatchSummary,
    HourSummary,
    ProblemSummary,
    RecentBatches,
    StreamHours,
)
from deltaworks.engine.ledger import BATCH_METADATA_SCHEMA, CHECKPOINT_STORE_SCHEMA
from deltaworks.engine.progress import PROGRESS_SCHEMA
from deltaworks.errors import DeltaworksError
from deltaworks.errors.conditions import catalog
from deltaworks.events.reasons import QUARANTINE_SCHEMA, ReasonCode
from deltaworks.maintenance.table_health.snapshots import SNAPSHOT_SCHEMA
from deltaworks.recovery.quarantine.open_rows import REPLAYS_SCHEMA
from deltaworks.recovery.reprocess.run import TableReprocessResult
from deltaworks.sources.objects.file_event_log import FILE_EVENT_COLUMNS, MESSAGE_QUARANTINE_COLUMNS
from deltaworks.specs.base import Spec
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.loading import load_spec
from deltaworks.specs.models import MODEL_COLUMNS
from deltaworks.specs.mutation import MUTABLE_COLUMNS, NOTIFICATION_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.spec_diff import pipeline_json_schema
from deltaworks.specs.table import ENVELOPE_COLUMNS, ColumnSpec, TableSpec
from deltaworks.tables.files import WrittenFile
from tests.processes import run_process
from tests.unit.cli.command_tree import all_commands

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
LIBRARY = ROOT / "include"
#: Keys of the metadata of table columns, which look like modules.
COLUMN_METADATA = {"deltaworks.path"}
#: The table of the SQL server's query log.
PROJECT_TABLES = {"deltaworks.queries"}
CODE = re.compile(r"^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$")
# Commands are looked for in code only: in prose "make" is an English word.
IN_CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)


def document_name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_in(text: str) -> str:
    """Everything a text sets as code."""
    return "\n".join(block or inline for block, inline in IN_CODE.findall(text))


def offenders(check: Callable[[str, Path], Iterable[str]]) -> dict[str, list[str]]:
    """What a check finds, by document. It gets a document's text and its path."""
    found = {document_name(document): list(check(document.read_text(), document)) for document in DOCUMENTS}
    return {document: problems for document, problems in found.items() if problems}


def broken_links(text: str, document: Path) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)", text)

    broken = []
    for link in links:
        target, _, anchor = link.partition("#")
        if target.startswith(("http://", "https://")):
            continue
        path = (document.parent / target).resolve() if target else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    return broken


def test_every_link_of_a_document_resolves() -> None:
    assert offenders(broken_links) == {}
    assert broken_links("[a](docs/none.md) [b](README.md#none) [c](https://x.org)", ROOT / "CHANGELOG.md") == [
        "docs/none.md",
        "README.md#none",
    ]


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def unknown_targets(text: str, _: Path) -> list[str]:
    named: set[str] = set()
    commands = re.sub(r"#.*", "", code_in(text))
    for words in re.findall(r"\bmake((?: [a-z]+)+)\b", commands):
        named |= set(words.split())
    return sorted(named - make_targets())


def test_every_make_command_of_a_document_exists() -> None:
    assert offenders(unknown_targets) == {}
    assert unknown_targets("to make sure, `make nothing lint`", ROOT) == ["nothing"]


def missing_runs(text: str, _: Path) -> list[str]:
    commands = re.findall(r"\bmake (bench|faults|integration)((?: [A-Z]+=(?:\"[^\"]*\"|\S+))*)", code_in(text))

    missing = []
    for target, settings in commands:
        values = dict(re.findall(r"([A-Z]+)=(\"[^\"]*\"|\S+)", settings))
        benchmark = values.get("ONLY")
        if target == "bench" and benchmark is not None and benchmark not in {*BENCHMARKS, "name"}:
            missing.append(f"bench {benchmark}")
        if "TESTS" in values and not (ROOT / values["TESTS"]).exists():
            missing.append(values["TESTS"])
    return missing


def test_every_benchmark_and_test_a_document_tells_to_run_exists() -> None:
    assert offenders(missing_runs) == {}
    assert missing_runs("`make bench ONLY=none` `make faults TESTS=tests/none.py`", ROOT) == [
        "bench none",
        "tests/none.py",
    ]


def module_exists(name: str) -> bool:
    """Whether a dotted name is a module or package of the library, or something that one defines."""
    path = LIBRARY / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    parent, _, attribute = name.rpartition(".")
    module = LIBRARY / parent.replace(".", "/")
    source = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return source.is_file() and re.search(rf"\b{attribute}\b", source.read_text()) is not None


def missing_code(text: str, document: Path) -> list[str]:
    # Marked examples are executed, which shows more: tests.unit.test_extending.
    text = re.sub(r"<!-- example: .*? -->\n```.*?```", "", text, flags=re.DOTALL)
    code = code_in(text)
    modules = set(re.findall(r"(?<![\w./-])(?:deltaworks|sandbox|collector|generator)(?:\.[a-zA-Z_]\w*)+", code))
    files = set(re.findall(r"(?<![\w./<>-])(?:[a-z_]+/)+[a-z_0-9]+\.(?:py|md|xml|toml)(?![\w.])", code))

    gone = {name for name in modules - COLUMN_METADATA - PROJECT_TABLES if not module_exists(name)}
    gone |= {
        name
        for name in files
        if not any((base / name).exists() for base in (ROOT, LIBRARY, LIBRARY / "deltaworks", document.parent))
    }

    return sorted(gone)


def test_every_module_and_file_a_document_names_exists() -> None:
    assert offenders(missing_code) == {}
    assert missing_code("`deltaworks.none` and `include/none.py` but `deltaworks.errors`", ROOT / "README.md") == [
        "deltaworks.none",
        "include/none.py",
    ]


@cache
def cli_commands() -> dict[str, set[str]]:
    """Commands with their subcommands and long options, as typer has them."""
    names: dict[str, set[str]] = {}
    for words, command in all_commands().items():
        name, *subcommands = words.split()
        names.setdefault(name, set()).update(subcommands)
        for parameter in command.params:
            names[name] |= {*parameter.opts, *parameter.secondary_opts}
    return names


def unknown_commands(text: str, _: Path) -> list[str]:
    commands, unknown = cli_commands(), []
    for name, rest in re.findall(r"\bdeltaworks ([a-z]+(?:-[a-z]+)*)\b([^`\n#;|&]*)", code_in(text)):
        if name not in commands:
            unknown.append(name)
            continue
        unknown += [
            f"{name} {option}" for option in re.findall(r"--[a-z][a-z-]*", rest) if option not in commands[name]
        ]
        subcommand = re.match(r" ([a-z]+(?:-[a-z]+)*)", rest)
        if name == "pipelines" and subcommand and subcommand[1] not in commands[name]:
            unknown.append(f"{name} {subcommand[1]}")
    return unknown


def test_every_deltaworks_command_of_a_document_exists() -> None:
    assert offenders(unknown_commands) == {}
    assert unknown_commands("`deltaworks none`, `deltaworks pipelines none --nothing`", ROOT) == [
        "none",
        "pipelines --nothing",
        "pipelines none",
    ]


def documented_codes() -> set[str]:
    named = re.findall(r"`([A-Z][A-Z0-9_]+)`", (ROOT / "docs" / "reference/conditions.md").read_text())
    return {code for code in named if "DELTAWORKS_" not in code}


def test_every_condition_and_every_cause_of_the_health_check_is_documented() -> None:
    assert (catalog().conditions.keys() | catalog().health_causes.keys()) - documented_codes() == set()


def test_no_code_is_documented_that_does_not_exist() -> None:
    codes = {code for code in documented_codes() if CODE.match(code)}

    assert codes - (catalog().conditions.keys() | catalog().health_causes.keys() | catalog().alerts.keys()) == set()


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "reference/conditions.md").read_text()

    kinds: list[type[DeltaworksError]] = [DeltaworksError, *DeltaworksError.__subclasses__()]

    missing = [kind.__name__ for kind in kinds if f"| {kind.exit_code} | {kind.__name__} |" not in text]
    assert missing == []


def examples() -> list[tuple[str, str, str]]:
    """Marked YAML examples: the document, the kind, the text."""
    found = []
    for document in DOCUMENTS:
        pattern = r"<!-- example: (\w+) -->\n```yaml\n(.*?)```"
        found += [(document.name, *match) for match in re.findall(pattern, document.read_text(), re.DOTALL)]
    return found


@pytest.mark.parametrize(("document", "kind", "text"), examples(), ids=lambda value: str(value)[:20].split("\n")[0])
def test_every_marked_example_is_a_valid_spec(document: str, kind: str, text: str, tmp_path: Path) -> None:
    if kind == "tables":
        assert [TableSpec.model_validate(each) for each in yaml.safe_load(text)]
        return
    models: dict[str, type[Spec]] = {
        "pipeline": PipelineSpec,
        "relay": RelaySpec,
        "environment": EnvironmentSpec,
        "collector": CollectorSpec,
    }
    path = tmp_path / f"{kind}.yaml"
    path.write_text(text)

    assert load_spec(models[kind], path).model_dump()[kind] in text


def test_the_documents_have_examples_of_every_kind() -> None:
    assert {kind for _, kind, _ in examples()} == {"pipeline", "relay", "environment", "tables", "collector"}


def test_the_large_example_has_every_key_that_changes_what_a_pipeline_does() -> None:
    largest = max((text for _, kind, text in examples() if kind == "pipeline"), key=len)
    declared = yaml.safe_load(largest)
    columns = [column for table in declared["tables"] for column in table["columns"]]

    # It reads objects, and an archive is of records; it is large, and groups are of small ones.
    assert set(PipelineSpec.model_fields) - {"archive", "stream_group"} == set(declared)
    assert set(TableSpec.model_fields) == {key for table in declared["tables"] for key in table}
    assert set(ColumnSpec.model_fields) == {key for column in columns for key in column}


def test_the_json_schema_for_editors_is_current() -> None:
    on_disk = json.loads((ROOT / "docs" / "reference" / "pipeline.schema.json").read_text())

    assert on_disk == pipeline_json_schema(), "run: deltaworks pipelines schema > docs/reference/pipeline.schema.json"


def described_fields() -> list[tuple[str, set[str]]]:
    return [
        ("bronze", {name for name, _ in ENVELOPE_COLUMNS}),
        ("mutable", {name for name, _ in MUTABLE_COLUMNS}),
        ("notifications", set(NOTIFICATION_COLUMNS)),
        ("quarantine", set(QUARANTINE_SCHEMA.names)),
        ("quarantine replays", set(REPLAYS_SCHEMA.names)),
        ("quarantine reasons", {str(code) for code in ReasonCode}),
        ("file event log", set(FILE_EVENT_COLUMNS)),
        ("message quarantine", set(MESSAGE_QUARANTINE_COLUMNS)),
        ("checkpoint store", set(CHECKPOINT_STORE_SCHEMA.names)),
        ("batch metadata store", set(BATCH_METADATA_SCHEMA.names)),
        ("models", set(MODEL_COLUMNS)),
        ("progress", set(PROGRESS_SCHEMA.names)),
        ("table health", set(SNAPSHOT_SCHEMA.names)),
        *(
            (kind.__name__, _fields_of(kind))
            for kind in (
                PreparedBatch,
                PreparedTable,
                PreparedReplay,
                StartOver,
                TableLoss,
                Rollback,
                LostCommit,
                StagedRows,
                WrittenFile,
                ReaderRecord,
                HeldTable,
                LeaseRecord,
                ResumeRequest,
                TurnRecord,
                ReprocessPlan,
                StagedFiles,
                StagedTable,
                TableReprocessResult,
                SpecRecord,
                CurrentSpec,
                AcceptedChange,
                Heartbeat,
                StopRequest,
                Alert,
                AlertState,
                Notification,
                Delivery,
                HealthCheckHeartbeat,
                CheckpointRecord,
                Generations,
                FeedRecord,
                FeedDelivery,
                Position,
                DeliveryRecord,
                DeadLetters,
                ReplayRequest,
                RemediationRecord,
                ModelRun,
                FoldReport,
                ModelMetrics,
                Gain,
                PublishedModel,
                RecentBatches,
                BatchSummary,
                ProblemSummary,
                StreamHours,
                HourSummary,
            )
        ),
    ]


def _fields_of(kind: type) -> set[str]:
    return set(kind.model_fields) if issubclass(kind, BaseModel) else {field.name for field in fields(kind)}


def test_every_field_on_disk_is_described() -> None:
    described = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs" / "reference/formats.md").read_text()))
    missing = {what: names - described for what, names in described_fields() if names - described}

    assert missing == {}
    assert "no_such_field" not in described


def test_the_changelog_has_a_section_for_the_present_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    section = re.search(
        rf"^## {re.escape(version)}\b[^\n]*\n(.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL
    )

    assert section is not None
    assert section[1].strip()


def test_every_local_hook_of_pre_commit_runs_a_locked_tool() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE))
    tool_of = {"ruff": "ruff", "mypy": "mypy", "lint-imports": "import-linter", "python": "pytest"}

    for hook in (hook for repo in config["repos"] for hook in repo["hooks"]):
        program = next(Path(word) for word in hook["entry"].split() if word.startswith(".venv"))

        assert program.parent == Path(".venv/bin"), hook["id"]
        assert tool_of[program.name] in locked, hook["id"]


def test_no_file_of_the_project_names_a_machine_or_an_absolute_path_of_one() -> None:
    listed = run_process(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True
    ).stdout.splitlines()
    # It begins with the slash, for which a search is fast.
    suspicious = re.compile(r"/(?<![\w.]/)(?:(?:work|root|Users)/|home/(?!airflow)\w)")

    found = []
    for name in listed:
        path = ROOT / name
        if path.suffix not in {".py", ".md", ".yaml", ".yml", ".toml", ".xml", ".sql", ".sh", ".txt", ".in"}:
            continue
        if path.is_file() and path != Path(__file__) and suspicious.search(path.read_text(errors="replace")):
            found.append(name)

    assert found == []
