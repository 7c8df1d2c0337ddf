"""Generates parts of docs/explanation/architecture.md: the layers, the rules and the packages.

The source is the import contracts in pyproject.toml and the first sentence of each package's docstring. A unit test
compares the page with them. `python -m tests.architecture` rewrites the page.
"""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import pairwise, product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation/architecture.md"
LIBRARY = ROOT / "include"
#: Packages outside the library that take part in the import contracts.
COMPANIONS = ("collector", "generator", "sandbox")


def contracts() -> list[dict[str, Any]]:
    """Returns import-linter's contracts from pyproject.toml."""
    declared: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    return declared


def layers() -> list[list[str]]:
    """Returns the layers of the library, highest first; packages of one layer do not import each other."""
    declared = next(contract for contract in contracts() if contract["type"] == "layers")
    return [[package.strip() for package in layer.split("|")] for layer in declared["layers"]]


def short(package: str) -> str:
    """Returns a package's name within the library."""
    return package.removeprefix("deltaworks.")


def node(package: str) -> str:
    """Returns a package's id in the graph; mermaid would take a point for syntax."""
    return short(package).replace(".", "_")


def layer_graph() -> str:
    """Returns a mermaid graph with a row per layer and arrows from each layer's packages to the next layer's."""
    lines = ["```mermaid", "flowchart TB"]
    for layer in layers():
        lines += [f'    {node(package)}["{package}"]' for package in layer]
    for upper, lower in pairwise(layers()):
        lines += [f"    {node(one)} --> {node(other)}" for one, other in product(upper, lower)]
    return "\n".join([*lines, "```"])


def import_rules() -> str:
    """Returns the contracts that forbid imports as a bullet list."""
    rules = []
    for contract in contracts():
        if contract["type"] == "forbidden":
            sources = ", ".join(f"`{module}`" for module in contract["source_modules"])
            targets = ", ".join(f"`{module}`" for module in contract["forbidden_modules"])
            rules.append(f"- **{contract['name']}**: {sources} never import {targets}.")
    return "\n".join(rules)


def package_folders() -> list[Path]:
    """Returns all packages in and outside the library, in the order of the layers; subpackages follow their parent."""
    order = [short(package) for layer in layers() for package in layer]
    library = LIBRARY / "deltaworks"
    folders = [
        library / name for name in dict.fromkeys(name.partition(".")[0] for name in order) if (library / name).is_dir()
    ]
    folders += [LIBRARY / name for name in COMPANIONS]
    return [init.parent for folder in folders for init in sorted(folder.rglob("__init__.py"))]


def first_sentence(folder: Path) -> str:
    """Returns the first sentence of a package's docstring.

    Raises:
        ValueError: the package has no docstring.
    """
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    if not docstring:
        raise ValueError(f"{folder} has no docstring.")
    first_line = docstring.split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=\.) (?=[A-Z])", first_line)[0]


def package_table() -> str:
    """Returns a table of packages with the first sentence of each docstring."""
    rows = ["| package | what it is |", "|---|---|"]
    for folder in package_folders():
        name = str(folder.relative_to(LIBRARY)).replace("/", ".")
        rows.append(f"| `{name}` | {first_sentence(folder)} |")
    return "\n".join(rows)


GENERATED = {"layers": layer_graph, "rules": import_rules, "packages": package_table}


def rendered(text: str) -> str:
    """Returns the page with every generated block replaced.

    Raises:
        ValueError: the page lacks the markers of a block.
    """
    for name, generate in GENERATED.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(begin) + r"\n.*?" + re.escape(end), re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"The page needs exactly one {begin} … {end}.")
        block = f"{begin}\n{generate()}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
