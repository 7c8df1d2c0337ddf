"""Limits on the code's structure: sizes, names, layers, and forbidden words in modules."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE_FOLDERS = (
    "include/deltaworks",
    "include/generator",
    "include/sandbox",
    "dags",
    "plugins",
    "spark_jobs",
    "benchmarks",
    "docker",
)
MODULES = sorted(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
DAGS = sorted((ROOT / "dags").glob("*.py"))
JOBS = sorted((ROOT / "spark_jobs").glob("*.py"))
#: Streams that run without end, and an example of a reader to copy.
WITHOUT_OPERATION = {"ingest_stream", "ingest_group", "count_engagement_days"}
HEAVY = {"pyspark", "delta", "boto3", "botocore", "deltalake", "pyarrow", "pandas", "duckdb", "numpy"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(tree: ast.AST, *, module_level_only: bool) -> set[str]:
    """The top-level packages a module imports."""
    nodes = tree.body if module_level_only and isinstance(tree, ast.Module) else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_has_a_docstring_and_at_most_600_lines(path: Path) -> None:
    text = path.read_text()

    assert ast.get_docstring(ast.parse(text)), "a module says what it is for"
    assert len(text.splitlines()) <= 600


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=name_of)
def test_a_module_holds_no_leftover_and_has_a_telling_name(path: Path) -> None:
    text = path.read_text()
    # Written apart, so that this test does not find itself.
    leftovers = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")

    assert leftovers.findall(text) == []
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


@pytest.mark.parametrize("path", DAGS, ids=name_of)
def test_a_dag_file_only_wires(path: Path) -> None:
    tree = ast.parse(path.read_text())

    assert len(path.read_text().splitlines()) <= 100
    assert imported(tree, module_level_only=False) <= {"__future__", "airflow", "deltaworks", "datetime"}
    from_library = [
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("deltaworks")
    ]
    assert all(str(module).startswith(("deltaworks.airflow", "deltaworks.specs")) for module in from_library)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


@pytest.mark.parametrize("path", JOBS, ids=name_of)
def test_a_job_is_an_entry_point_and_no_more(path: Path) -> None:
    text = path.read_text()

    if path.stem in WITHOUT_OPERATION:
        assert len(text.splitlines()) <= 60
        assert "run_job(main" in text
    else:
        assert len(text.splitlines()) <= 12
        assert re.findall(r'main\("(\w+)"\)', text) == [path.stem]


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "include/deltaworks/specs").rglob("*.py"))
    + sorted((ROOT / "include/deltaworks/control").rglob("*.py")),
    ids=name_of,
)
def test_specs_and_control_import_nothing_heavy_when_they_are_loaded(path: Path) -> None:
    assert imported(ast.parse(path.read_text()), module_level_only=True) & (HEAVY | {"airflow"}) == set()


def test_what_is_declared_and_controlled_loads_without_spark_and_airflow() -> None:
    modules = [
        name_of(path).removeprefix("include/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for part in ("specs", "control")
        for path in sorted((ROOT / "include/deltaworks" / part).rglob("*.py"))
    ]
    heavy = sorted(HEAVY | {"airflow"})
    program = f"import sys, {', '.join(modules)}; print([name for name in {heavy} if name in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "include", capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def deltalakes_files(tree: ast.AST) -> list[int]:
    """The lines where a Delta table is read through Python objects of deltalake's instead of a file system."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"to_pyarrow_dataset", "to_pyarrow_table"}
        and "filesystem" not in {keyword.arg for keyword in node.keywords}
    ]


def test_delta_tables_are_read_by_a_file_system_of_arrows() -> None:
    texts = {name_of(path): path.read_text() for path in MODULES}
    lines = {name: deltalakes_files(ast.parse(text)) for name, text in texts.items() if "to_pyarrow_" in text}

    assert "include/deltaworks/tables/lake.py" in lines
    assert not {name: at for name, at in lines.items() if at}, (
        "take `rows_of` or `dataset_of` of deltaworks.tables.lake"
    )


@pytest.mark.parametrize("statement", ["table.to_pyarrow_dataset()", "DeltaTable(uri).to_pyarrow_table(columns=names)"])
def test_a_reading_through_deltalakes_own_files_is_seen(statement: str) -> None:
    assert deltalakes_files(ast.parse(statement)) == [1]
    assert not deltalakes_files(ast.parse(f"{statement.removesuffix(')')}, filesystem=root)".replace("(,", "(")))


def test_the_layers_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "include")}

    done = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout[-3000:]


def test_every_benchmark_module_is_registered() -> None:
    from benchmarks.registry import BENCHMARKS

    declaring = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if re.search(r"^BENCHMARK = ", path.read_text(), re.MULTILINE)
    }

    assert {benchmark.run.__module__.rpartition(".")[2] for benchmark in BENCHMARKS.values()} == declaring
    assert all(name == benchmark.name for name, benchmark in BENCHMARKS.items())
