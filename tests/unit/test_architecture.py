"""The generated architecture page matches the import contracts and the packages' docstrings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import architecture


def test_the_generated_parts_of_the_page_are_current() -> None:
    page = architecture.PAGE.read_text()

    assert page == architecture.rendered(page), "run: python -m tests.architecture"


def parts(package: Path) -> set[str]:
    """Returns the names of the modules and packages in a package."""
    entries = (*package.glob("*.py"), *(init.parent for init in package.glob("*/__init__.py")))
    return {f"deltaworks.{package.name}.{entry.stem}" for entry in entries if entry.stem != "__init__"}


def test_every_package_of_the_library_is_in_one_layer_or_each_of_its_parts_is() -> None:
    library = architecture.LIBRARY / "deltaworks"
    in_layers = [package for layer in architecture.layers() for package in layer]
    divided = {package.rpartition(".")[0] for package in in_layers if package.count(".") > 1}

    expected = set()
    for init in library.glob("*/__init__.py"):
        name = f"deltaworks.{init.parent.name}"
        expected |= parts(init.parent) if name in divided else {name}

    assert set(in_layers) - {"sandbox", "deltaworks.testing"} == expected
    assert len(in_layers) == len(set(in_layers))


def test_the_graph_has_an_arrow_from_each_layer_to_the_next_and_none_upwards() -> None:
    rank = {
        architecture.node(package): number for number, layer in enumerate(architecture.layers()) for package in layer
    }

    arrows = [line.split(" --> ") for line in architecture.layer_graph().splitlines() if " --> " in line]

    assert {rank[upper.strip()] + 1 == rank[lower] for upper, lower in arrows} == {True}
    assert {name for arrow in arrows for name in (arrow[0].strip(), arrow[1])} == set(rank)


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="generated: layers"):
        architecture.rendered("# Architecture\n")


def test_a_stale_block_is_replaced_and_the_prose_around_it_stays() -> None:
    page = "\n".join(
        f"before {name}\n<!-- generated: {name} -->\nstale\n<!-- end of {name} -->\nafter {name}"
        for name in architecture.GENERATED
    )

    current = architecture.rendered(page)

    assert "stale" not in current
    assert all(f"before {name}\n" in current and f"\nafter {name}" in current for name in architecture.GENERATED)


def test_the_first_sentence_of_a_docstring_ends_at_its_full_stop(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('"""Reads `pipeline.yaml`. Writes\nnothing.\n\nMore.\n"""\n')

    assert architecture.first_sentence(tmp_path) == "Reads `pipeline.yaml`."
