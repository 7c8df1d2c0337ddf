"""A short run of the fuzzer, the same on every machine: inputs by structure and damaged objects, for every target."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz import registry, seeds
from tests.fuzz.campaign import replay
from tests.fuzz.cases import Case, read_cases
from tests.fuzz.judge import judge
from tests.fuzz.mutations import mutated

EXAMPLES = Path(__file__).resolve().parents[2] / "fuzz" / "examples"
_MADE, _DAMAGED = 8, 16
#: What is this large is for a process of its own.
_MOST_BYTES = 8_000
VARIANTS = pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, variant, id=f"{name}-{variant}")
        for name in registry.NAMES
        for variant in registry.target(name).variants()
    ],
)


@VARIANTS
def test_inputs_by_structure_are_read_as_a_slow_reader_reads_them(name: str, variant: str) -> None:
    @settings(max_examples=_MADE, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(registry.target(name).inputs(variant))
    def examine(data: bytes) -> None:
        if len(data) <= _MOST_BYTES:
            assert judge(Case(name, variant, data)).problems == ()

    examine()


@VARIANTS
def test_damaged_objects_are_read_as_a_slow_reader_reads_them(name: str, variant: str) -> None:
    rng = Random(f"{name}/{variant}")
    # Objects that every machine has: shared data would make it other inputs here than there.
    objects = seeds.own_seeds(name, variant)

    for _ in range(_DAMAGED):
        data = mutated(rng.choice(objects), rng, kind=registry.target(name).kind, others=objects)[:_MOST_BYTES]
        verdict = judge(Case(name, variant, data))

        assert verdict.problems == (), data


def test_inputs_that_failed_once_are_read_rightly(tmp_path: Path) -> None:
    files = read_cases([EXAMPLES])

    assert files
    assert replay(files, tmp_path) == {}


def test_an_example_is_called_by_its_own_digest() -> None:
    assert [path.name for path, case in read_cases([EXAMPLES]) if f"{case.target}-{case.digest}" != path.stem] == []
