"""Limits on the code's structure: sizes, names, layers, and what modules may import."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

import pytest

from tests.code_trees import imports_of, nodes_of, tree_of
from tests.processes import run_process

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
WITHOUT_OPERATION = {"ingest_stream", "ingest_group", "count_engagement_days", "serve_spark_connect"}
MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
LIBRARY = sorted((ROOT / "include/deltaworks").rglob("*.py"))
#: A module is as long as its concept, between these lines; a function fits on a screen.
SHORTEST, LONGEST, LONGEST_FUNCTION = 60, 600, 60
#: How many modules and functions of the library do not keep that. Lower them with each change that mends some.
MODULES_OF_ANOTHER_SIZE, LONG_FUNCTIONS = 36, 2
HEAVY = {"pyspark", "delta", "boto3", "botocore", "deltalake", "pyarrow", "pandas", "duckdb", "numpy"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(tree: ast.AST, *, module_level_only: bool) -> set[str]:
    """The top-level packages a module imports."""
    nodes = tree.body if module_level_only and isinstance(tree, ast.Module) else imports_of(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_every_module_has_a_docstring() -> None:
    assert [name_of(path) for path in MODULES if not ast.get_docstring(tree_of(path))] == []


def leftovers(text: str) -> list[str]:
    # Written apart, so that this test does not find itself.
    return re.findall(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b", text)


def test_no_module_holds_a_leftover_or_has_a_name_that_tells_nothing() -> None:
    files = [*MODULES, *TESTS]

    assert [(name_of(path), found) for path in files if (found := leftovers(path.read_text()))] == []
    assert [name_of(path) for path in files if path.stem in MEANINGLESS] == []
    assert leftovers("x = 1  # TO" + "DO: later") == ["TO" + "DO"]


def is_size_free(path: Path, tree: ast.Module) -> bool:
    """Whether a module may have any length: packages, entry points, registries, and modules of protocols only."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    protocols = [node for node in classes if any(getattr(base, "id", "") == "Protocol" for base in node.bases)]
    others = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return path.stem in {"__init__", "__main__"} or "registry" in path.stem or (classes == protocols != [] == others)


def long_functions(tree: ast.AST) -> list[str]:
    functions = (node for node in nodes_of(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION]


def test_the_modules_that_are_too_short_or_too_long_get_no_more() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in LIBRARY if not is_size_free(path, tree_of(path))}
    offenders = sorted((length, name_of(path)) for path, length in lengths.items() if not SHORTEST <= length <= LONGEST)

    assert len(offenders) <= MODULES_OF_ANOTHER_SIZE, "\n".join(f"{length} {name}" for length, name in offenders)


def test_the_functions_that_do_not_fit_on_a_screen_get_no_more() -> None:
    offenders = [f"{name_of(path)}: {name}" for path in LIBRARY for name in long_functions(tree_of(path))]

    assert len(offenders) <= LONG_FUNCTIONS, "\n".join(offenders)


def test_a_long_function_is_found_and_a_module_of_protocols_is_none_of_another_size() -> None:
    body = "    pass\n" * LONGEST_FUNCTION

    assert long_functions(ast.parse(f"def fits():\n{body[:-9]}\ndef long():\n{body}")) == ["long"]
    assert is_size_free(Path("ports.py"), ast.parse("class Port(Protocol):\n    name: str"))
    assert not is_size_free(Path("ports.py"), ast.parse("class Port:\n    name: str"))
    assert not is_size_free(Path("ports.py"), ast.parse("NAME = 1"))


def wiring_problems(tree: ast.Module) -> list[str]:
    """What a DAG file does beyond wiring."""
    packages = imported(tree, module_level_only=False) - {"__future__", "airflow", "deltaworks", "datetime"}
    from_library = [
        str(node.module)
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("deltaworks")
    ]
    engines = [module for module in from_library if not module.startswith(("deltaworks.airflow", "deltaworks.specs"))]
    definitions = [node.name for node in nodes_of(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [*sorted(packages), *engines, *definitions]


def test_a_dag_file_only_wires() -> None:
    assert {name_of(path): found for path in DAGS if (found := wiring_problems(tree_of(path)))} == {}
    assert wiring_problems(ast.parse("import boto3\nfrom deltaworks.gold import build\ndef task(): ...")) == [
        "boto3",
        "deltaworks.gold",
        "task",
    ]


def job_problems(stem: str, tree: ast.Module, text: str) -> list[str]:
    """What a job does beyond starting its operation or stream."""
    definitions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    if stem in WITHOUT_OPERATION:
        return [] if "run_job(main" in text and "main" in definitions else ["does not run `main` as a job"]
    operations = re.findall(r'main\("(\w+)"\)', text)
    return definitions + ([] if operations == [stem] else [f"runs {operations}"])


def test_a_job_is_an_entry_point_and_no_more() -> None:
    problems = {name_of(path): job_problems(path.stem, tree_of(path), path.read_text()) for path in JOBS}

    assert {name: found for name, found in problems.items() if found} == {}
    assert job_problems("vacuum", ast.parse("def helps(): ..."), 'main("optimize")') == ["helps", "runs ['optimize']"]


def test_specs_and_control_import_nothing_heavy_when_they_are_loaded() -> None:
    light = [path for part in ("specs", "control") for path in (ROOT / "include/deltaworks" / part).rglob("*.py")]
    heavy = {
        name_of(path): found
        for path in light
        if (found := imported(tree_of(path), module_level_only=True) & (HEAVY | {"airflow"}))
    }

    assert heavy == {}
    assert imported(ast.parse("import boto3\ndef late():\n    import duckdb"), module_level_only=True) == {"boto3"}


def test_what_is_declared_and_controlled_loads_without_spark_and_airflow() -> None:
    modules = [
        name_of(path).removeprefix("include/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for part in ("specs", "control")
        for path in sorted((ROOT / "include/deltaworks" / part).rglob("*.py"))
    ]
    heavy = sorted(HEAVY | {"airflow"})
    program = f"import sys, {', '.join(modules)}; print([name for name in {heavy} if name in sys.modules])"

    done = run_process([sys.executable, "-c", program], cwd=ROOT / "include", check=True)

    assert done.stdout.strip() == "[]"


#: The one function of the library for each way to read files, and its module.
READERS = {
    "open_parquet": (
        "tables/files.py",
        {"ParquetFile", "ParquetDataset", "read_table", "read_metadata", "read_schema"},
    ),
    "dataset_of": (
        "tables/lake.py",
        {"to_pyarrow_dataset", "to_pyarrow_table", "to_pandas", "QueryBuilder", "scan", "dataset", "FileSystemDataset"}
        | {"ParquetFileFormat", "ParquetReadOptions", "InMemoryDataset", "parquet_dataset"},
    ),
    "open_table": ("tables/commit.py", {"DeltaTable"}),
}


def other_readers(tree: ast.AST, names: set[str]) -> list[int]:
    """The lines where a library's function that reads files is called."""
    if "deltalake" not in imported(tree, module_level_only=False):
        names = names - {"scan"}  # redaction scans too
    calls = [node for node in nodes_of(tree) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if (isinstance(call.func, ast.Attribute) and call.func.attr in names)
        or (isinstance(call.func, ast.Name) and call.func.id in names)
    ]


@pytest.mark.parametrize("function", READERS)
def test_files_and_tables_are_opened_in_one_way(function: str) -> None:
    home, names = READERS[function]
    lines = {name_of(path): other_readers(tree_of(path), names) for path in LIBRARY}

    assert lines.pop(f"include/deltaworks/{home}")
    assert not {name: at for name, at in lines.items() if at}, f"use {function} of deltaworks/{home}"


def deltalakes_files(tree: ast.AST) -> list[int]:
    """The lines where a Delta table is read through Python objects of deltalake's instead of a file system."""
    return [
        node.lineno
        for node in nodes_of(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"to_pyarrow_dataset", "to_pyarrow_table"}
        and "filesystem" not in {keyword.arg for keyword in node.keywords}
    ]


def test_delta_tables_are_read_by_a_file_system_of_arrows() -> None:
    lines = {name_of(path): deltalakes_files(tree_of(path)) for path in MODULES}

    assert not {name: at for name, at in lines.items() if at}, (
        "take `rows_of` or `dataset_of` of deltaworks.tables.lake"
    )


@pytest.mark.parametrize("statement", ["table.to_pyarrow_dataset()", "DeltaTable(uri).to_pyarrow_table(columns=names)"])
def test_a_reading_through_deltalakes_own_files_is_seen(statement: str) -> None:
    assert deltalakes_files(ast.parse(statement)) == [1]
    assert other_readers(ast.parse(statement), READERS["dataset_of"][1]) == [1]
    assert not deltalakes_files(ast.parse(f"{statement.removesuffix(')')}, filesystem=root)".replace("(,", "(")))


def test_the_layers_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "include")}

    done = run_process([program, "--no-cache"], cwd=ROOT, env=environment)

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


#: Modules whose values are instructions: reading one runs what its writer has chosen.
CODE_AS_DATA = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
PYTHON_WORKERS = {"parallelize", "mapPartitions", "mapPartitionsWithIndex", "rdd"}


def unpickled_results(tree: ast.AST) -> list[int]:
    """Returns the lines that collect what Python workers return as Spark pickled it."""
    return [
        node.lineno
        for node in nodes_of(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"collect", "take", "first", "reduce", "aggregate", "toLocalIterator", "foreachPartition"}
        and any(getattr(part, "attr", "") in PYTHON_WORKERS for part in ast.walk(node.func.value))
    ]


def test_no_process_unpickles_what_another_one_wrote() -> None:
    paths = [path for path in (*MODULES, *JOBS) if "tests" not in path.parts]

    assert [name_of(path) for path in paths if imported(tree_of(path), module_level_only=False) & CODE_AS_DATA] == []
    assert [name_of(path) for path in paths if unpickled_results(tree_of(path))] == []
    assert unpickled_results(ast.parse("spark.sparkContext.parallelize(a, 2).mapPartitions(f).collect()")) == [1]
