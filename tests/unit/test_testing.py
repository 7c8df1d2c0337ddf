"""The examples of docs/how-to/test-a-pipeline.md run as written, and only tests import `deltaworks.testing`."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deltaworks import testing
from deltaworks.fixtures.results import run_fixtures
from deltaworks.testing import declare_columns, declare_table, load_project, present, write_project
from tests.code_trees import imports_of, tree_of
from tests.processes import run_process
from tests.unit.feeds.test_process import examples

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to/test-a-pipeline.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
PRODUCT = ("include", "dags", "plugins", "spark_jobs")


def run_tests(project: Path) -> subprocess.CompletedProcess[str]:
    """Runs pytest in a project as its user does."""
    variables = {"PYTHONPATH": str(ROOT / "include"), "DELTAWORKS_PROJECT": str(project), "PATH": "/usr/bin:/bin"}
    return run_process([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=project, env=variables)


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    (pipeline,) = examples("contributing/extending.md", "pipeline")
    (gold,) = examples("contributing/extending.md", "gold")
    (sql,) = examples("contributing/extending.md", "gold", language="sql")
    relay = testing.RELAY | {"buckets": ["deltaworks-landing"]}
    files = {"pipelines/orders/gold/turnover.sql": sql}
    write_project(tmp_path, pipeline + gold, relays=[relay], files=files)
    testing.write_files(tmp_path, {f"test_{number}.py": text for number, text in enumerate(EXAMPLES)})

    done = run_tests(tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_declared_test_of_the_page_passes(tmp_path: Path) -> None:
    (pipeline,) = examples("contributing/extending.md", "pipeline")
    (gold,) = examples("contributing/extending.md", "gold")
    (sql,) = examples("contributing/extending.md", "gold", language="sql")
    (declared,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    relay = testing.RELAY | {"buckets": ["deltaworks-landing"]}
    files = {"pipelines/orders/gold/turnover.sql": sql, "pipelines/orders/tests/order.yaml": declared}
    catalog = load_project(tmp_path, pipeline + gold, relays=[relay], files=files)

    (result,) = run_fixtures(catalog, "orders")

    assert (result.error, [check.differences for check in result.checks]) == ("", [(), (), ()])


def test_the_page_lists_every_function() -> None:
    public = {
        name for name, one in vars(testing).items() if inspect.isfunction(one) and one.__module__ == testing.__name__
    }

    table = PAGE.read_text().partition("| function | builds |")[2]
    listed = re.findall(r"`(\w+)`", "\n".join(line for line in table.splitlines() if line.startswith("| `")))
    assert {name for name in public if not name.startswith("_")} == set(listed)


def test_a_column_is_declared_by_text_or_by_a_mapping() -> None:
    assert declare_columns(
        "place struct<x: long, y: int> from params.place required", {"name": "n", "type": "int"}
    ) == [
        {"name": "place", "path": "params.place", "type": "struct<x: long, y: int>", "required": True},
        {"name": "n", "type": "int"},
    ]


@pytest.mark.parametrize(
    ("table", "declared"),
    [
        (declare_table("t"), {"name": "t", "catch_all": True}),
        (declare_table("t", when="order"), {"name": "t", "when": {"name": "order"}}),
        (declare_table("t", announces={"table": "u"}), {"name": "t", "announces": {"table": "u"}}),
    ],
    ids=["all", "named", "announcing"],
)
def test_a_table_gets_its_events(table: dict[str, object], declared: dict[str, object]) -> None:
    assert table == declared


def test_a_missing_value_fails_the_test() -> None:
    assert present("") == ""
    with pytest.raises(AssertionError):
        present(None)


def imports_testing(tree: ast.AST) -> bool:
    names = [node.module or "" for node in imports_of(tree) if isinstance(node, ast.ImportFrom)]
    names += [
        f"{node.module}.{alias.name}"
        for node in imports_of(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    names += [alias.name for node in imports_of(tree) if isinstance(node, ast.Import) for alias in node.names]
    return "deltaworks.testing" in names


def test_nothing_but_tests_imports_it() -> None:
    modules = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]

    assert [str(path) for path in modules if imports_testing(tree_of(path))] == []
    assert imports_testing(ast.parse("from deltaworks import testing"))


def test_it_loads_without_pytest_spark_airflow_and_arrow() -> None:
    program = (
        "import sys, deltaworks.testing; "
        "print(sorted({'pytest', 'pyspark', 'airflow', 'pyarrow', 'deltalake', 'boto3'} & set(sys.modules)))"
    )

    done = run_process([sys.executable, "-c", program], cwd=ROOT / "include", check=True)

    assert done.stdout.strip() == "[]"
