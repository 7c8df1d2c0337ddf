"""The check of a valid project is cached until any of its inputs changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.specs.checks import check_cache
from deltaworks.specs.checks import project as reading
from deltaworks.specs.checks.check_cache import CODE_PATTERNS, ProjectReport, cached_project_check
from deltaworks.specs.project_folder import PROJECT_ROOT

ENVIRONMENT = 'environment: local\nlake: {root: "file:///lake"}\nlanding: {root: "file:///landing"}\nmessaging: {}\n'
RELAY = "relay: landing\ndescription: Objects.\nowner: shop\nqueue_url: env:QUEUE_URL\nbuckets: [drops]\n"
PIPELINE = """\
pipeline: orders
description: Orders.
owner: shop
source: {kind: s3_sqs, relay: landing, bucket: drops, prefix: orders/}
event: {name: {path: kind}, time: {path: at, unit: iso8601}, id: [order_id]}
tables:
  - name: placed
    when: {kind: placed}
    columns:
      - {name: order_id, path: order_id, type: string, required: true}
      - {name: country, path: country, type: string}
gold:
  schedule: "0 3 * * *"
  tables:
    - name: daily
      description: Orders a day.
      sql: SQL_FILE
      reads: [placed]
      partition_by: event_date
      affects: {days: [0]}
"""
SQL = "SELECT event_date, count(*) AS orders FROM placed GROUP BY event_date\n"


@pytest.fixture
def sample_values(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The projects that were read."""
    roots: list[Path] = []
    check = reading.check_project

    def counted(environment: str | None = None, *, root: Path) -> Any:
        roots.append(root)
        return check(environment, root=root)

    monkeypatch.setattr(reading, "check_project", counted)
    return roots


@pytest.fixture
def make_shop(tmp_path: Path) -> Callable[..., Path]:
    """Makes a project of one pipeline whose gold table names a file of SQL."""

    def make(sql: str = "gold/daily.sql") -> Path:
        files = {
            "environments/local.yaml": ENVIRONMENT,
            "relays/landing.yaml": RELAY,
            "pipelines/orders/pipeline.yaml": PIPELINE.replace("SQL_FILE", sql),
            f"pipelines/orders/{sql}": SQL,
        }
        for name, text in files.items():
            file = tmp_path / "project/include" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path / "project"

    return make


def test_a_valid_project_is_answered_from_the_cache(make_shop: Callable[..., Path], sample_values: list[Path]) -> None:
    root = make_shop()

    first, second = cached_project_check(root), cached_project_check(root)

    assert sample_values == [root]
    assert second == first
    assert [(facts.name, facts.tables, facts.gold) for facts in second.pipelines] == [("orders", 1, 1)]
    assert second.relays == 1


def test_warnings_are_cached_too(make_shop: Callable[..., Path], sample_values: list[Path]) -> None:
    root = make_shop()
    file = root / "include/pipelines/orders/pipeline.yaml"
    file.write_text(file.read_text().replace('  schedule: "0 3 * * *"\n', "") + "maintenance: {schedule: null}\n")

    first, second = cached_project_check(root), cached_project_check(root)

    assert len(sample_values) == 1
    assert [warning.key for warning in second.warnings] == ["gold"]
    assert second.warnings == first.warnings


def _edit_sql(root: Path, patch: pytest.MonkeyPatch) -> None:
    (root / "include/pipelines/orders/gold/daily.sql").write_text(SQL.replace("orders", "placed_orders"))


def _edit_a_relay(root: Path, patch: pytest.MonkeyPatch) -> None:
    (root / "include/relays/landing.yaml").write_text(RELAY.replace("Objects.", "Files."))


def _edit_the_environment(root: Path, patch: pytest.MonkeyPatch) -> None:
    with (root / "include/environments/local.yaml").open("a") as file:
        file.write("# a note\n")


def _add_a_file(root: Path, patch: pytest.MonkeyPatch) -> None:
    (root / "include/pipelines/orders/note.txt").write_text("")


def _set_a_variable(root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("DELTAWORKS_SET__pipelines__orders__owner", "web")


def _install_a_library(root: Path, patch: pytest.MonkeyPatch) -> None:
    (root / "libraries/pydantic-99.0.dist-info").mkdir(parents=True)
    patch.syspath_prepend(str(root / "libraries"))


def _pass_a_day(root: Path, patch: pytest.MonkeyPatch) -> None:
    later = check_cache.time.time() + 86_400
    patch.setattr(check_cache.time, "time", lambda: later)


def _other_code(root: Path, patch: pytest.MonkeyPatch) -> None:
    (root / "package/errors").mkdir(parents=True)
    (root / "package/errors/__init__.py").write_text("")
    patch.setattr(check_cache, "_PACKAGE", root / "package")


@pytest.mark.parametrize(
    "change",
    [
        _edit_sql,
        _edit_a_relay,
        _edit_the_environment,
        _add_a_file,
        _set_a_variable,
        _install_a_library,
        _pass_a_day,
        _other_code,
    ],
)
def test_any_change_invalidates_the_cached_result(
    change: Callable[[Path, pytest.MonkeyPatch], None],
    make_shop: Callable[..., Path],
    sample_values: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = make_shop()
    cached_project_check(root)

    change(root, monkeypatch)
    cached_project_check(root)

    assert len(sample_values) == 2


def test_variables_of_the_shell_change_nothing(
    make_shop: Callable[..., Path], sample_values: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_shop()
    cached_project_check(root)
    monkeypatch.setenv("SHLVL", "7")
    monkeypatch.setenv("PWD", "/elsewhere")

    cached_project_check(root)

    assert len(sample_values) == 1


def test_errors_are_determined_each_time(make_shop: Callable[..., Path], sample_values: list[Path]) -> None:
    root = make_shop()
    (root / "include/pipelines/orders/gold/daily.sql").write_text(SQL.replace("FROM placed", "FROM plced"))

    answers = [cached_project_check(root) for _ in range(2)]

    assert len(sample_values) == 2
    assert all("plced" in answer.errors[0].text for answer in answers)


def test_a_project_with_sql_elsewhere_is_not_cached(make_shop: Callable[..., Path], sample_values: list[Path]) -> None:
    root = make_shop("../../../shared/daily.sql")
    assert (root / "shared/daily.sql").is_file()
    assert cached_project_check(root).errors == []
    (root / "shared/daily.sql").write_text(SQL.replace("FROM placed", "FROM plced"))

    assert [spec_error.file.name for spec_error in cached_project_check(root).errors] == ["daily.sql"]
    assert len(sample_values) == 2


def test_large_folders_are_not_cached(
    make_shop: Callable[..., Path], sample_values: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_shop()
    monkeypatch.setattr(check_cache, "MAX_BYTES", 100)

    answers = [cached_project_check(root) for _ in range(2)]

    assert len(sample_values) == 2
    assert answers[0] == answers[1]


@pytest.mark.parametrize("text", ["{", '{"a": {}}', '{"a": {"warnings": [], "pipelines": [{"name": 1}], "relays": 0}}'])
def test_a_corrupt_cache_is_ignored(
    make_shop: Callable[..., Path], sample_values: list[Path], cache_folder: Path, text: str
) -> None:
    root = make_shop()
    cached_project_check(root)
    (file,) = cache_folder.glob("valid_projects.json")
    file.write_text(text)

    answer = cached_project_check(root)

    assert len(sample_values) == 2
    assert len(json.loads(file.read_text())) == 1
    assert isinstance(answer, ProjectReport)


def test_the_digest_covers_all_code_of_the_check() -> None:
    program = (
        "import sys; from deltaworks.specs.checks.check_cache import cached_project_check; cached_project_check(); "
        "print(*sorted(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] in "
        "('deltaworks', 'generator', 'collector', 'sandbox')), sep='\\n')"
    )
    package = PROJECT_ROOT / "include/deltaworks"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT_ROOT / "include", capture_output=True, text=True, check=True
    )

    decides = {str(file) for judges in CODE_PATTERNS for file in package.glob(judges)}
    loaded = set(done.stdout.split())
    assert str(package / "specs/pipeline.py") in loaded
    assert loaded - decides == set()


def test_a_cached_result_imports_no_spec(make_shop: Callable[..., Path]) -> None:
    root = make_shop()
    program = (
        "import sys, pathlib; from deltaworks.specs.checks.check_cache import cached_project_check; "
        f"print(len(cached_project_check(pathlib.Path({str(root)!r})).pipelines), "
        "sorted({'pydantic', 'yaml', 'ruamel', 'sqlglot', 'duckdb'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", program]

    messages = [
        subprocess.run(command, cwd=PROJECT_ROOT / "include", capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]

    assert "'pydantic'" in messages[0]
    assert messages[1].strip() == "1 []"
