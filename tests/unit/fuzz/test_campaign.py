"""The fuzzer detects, shrinks, saves and replays planted faults; a short run covers every target on any machine."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz import registry, seeds
from tests.fuzz.campaign import Campaign, replay
from tests.fuzz.cases import Case, read_cases
from tests.fuzz.judge import judge
from tests.fuzz.mutations import mutated
from tests.fuzz.shrinking import shrunk

PLANTED = "tests.unit.fuzz.planted"
SIGNATURES = {
    "segfault": "segfault: the process was ended by SIGSEGV",
    "memory": "memory: took N MiB of memory",
    "busy": "busy: the process was ended for its CPU",
    "exception": "exception: raised LookupError in the test",
    "losing": "losing: an event vanished",
    "random": "random: read twice, it comes to other rows",
}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """One run over all planted faults."""
    run = Campaign(
        ("right", *SIGNATURES),
        seed=7,
        seconds=0.0,
        folder=tmp_path_factory.mktemp("fuzz"),
        module=PLANTED,
        passes=1,
        is_quiet=True,
        shrinking_seconds=2.0,
    )
    assert run.run() == 1
    return run


def test_every_kind_of_fault_is_a_failure_and_nothing_else_is(campaign: Campaign) -> None:
    assert set(campaign.failures) == set(SIGNATURES.values())
    assert campaign.tallies["right"].inputs > 0
    assert campaign.tallies["right"].failures == 0


def test_a_failure_is_saved_small_with_the_line_that_replays_it(campaign: Campaign) -> None:
    for signature in (SIGNATURES["exception"], SIGNATURES["segfault"]):
        (path, *_) = campaign.failures[signature]

        assert Case.decode(path.read_bytes()).data == b"!"
        assert any(f"python -m tests.fuzz --replay {path}" in line for line in campaign.lines)


def test_a_saved_failure_fails_again_until_it_is_mended(campaign: Campaign, tmp_path: Path) -> None:
    files = read_cases([campaign.failures[SIGNATURES["losing"]][0], campaign.failures[SIGNATURES["segfault"]][0]])

    assert len(replay(files, tmp_path, module=PLANTED)) == 2


def test_the_table_counts_every_target(campaign: Campaign) -> None:
    rows = [line.split() for line in campaign.table().splitlines()]

    assert rows[0][:4] == ["target", "inputs", "events", "quarantined"]
    assert [row[0] for row in rows[1:-1]] == ["right", *SIGNATURES]


def test_a_framer_that_loses_an_event_is_seen(tmp_path: Path) -> None:
    line = b'{"name": "login", "time": 1700000000, "id": "a"}\n'
    case = Case("json", "values", line * 3)
    path = case.save(tmp_path)

    assert "events came out" in replay([(path, case)], tmp_path / "work", module=PLANTED)[path]
    assert judge(case).problems == ()


def test_a_smaller_input_is_one_that_fails_alike() -> None:
    assert shrunk(b"abc{def}ghi", lambda data: b"{" in data and b"}" in data, seconds=60) == b"{}"


def test_a_case_is_the_same_after_it_was_saved(tmp_path: Path) -> None:
    case = Case("csv", "commas", b"\x00\n{\xff")

    assert [loaded for _, loaded in read_cases([case.save(tmp_path, note="why")])] == [case]


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
