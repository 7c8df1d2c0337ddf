"""More events than are made come from the same files, several times."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import games_files
from benchmarks.games_files import landed_objects, repeat_files
from generator.settings import FaultRates


def test_the_same_events_several_times_are_as_many_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(games_files, "bench_folder", lambda: tmp_path)
    once = games_files.games_files(200, progress=lambda line: None, faults=FaultRates())

    thrice = repeat_files(once, 3)

    assert thrice.sizes() == {name: 3 * size for name, size in once.sizes().items()}
    for form in ("landed", "lines", "unwrapped"):
        made, linked = landed_objects(getattr(once, form)), landed_objects(getattr(thrice, form))
        assert len({path.name for path in linked}) == 3 * len(made)
        assert sorted(path.read_bytes() for path in linked) == sorted(3 * [path.read_bytes() for path in made])
    assert repeat_files(once, 3) == thrice
