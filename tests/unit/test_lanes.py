"""`make test` runs every part, shows failures, and ends with one line of total counts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import lanes
from tests.examples import SHARE_VARIABLE, examples
from tests.lanes import PARTS, Part, run

ROOT = Path(__file__).resolve().parents[2]


def printing(name: str, *lines: str, code: int = 0, is_pytest: bool = True) -> Part:
    return Part(name, (sys.executable, "-c", f"print({chr(10).join(lines)!r}); raise SystemExit({code})"), is_pytest)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_the_last_line_counts_the_tests_of_all_parts(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [
        printing("spark", "...", "=== 2 passed, 112 deselected in 61.20s (0:01:01) ==="),
        printing("unit", "=== 1 failed, 30 passed, 1 skipped, 2 errors in 5.00s ===", code=1),
        printing("types", "Success: no issues found", is_pytest=False),
    ]

    assert run(parts, lanes=2) == 1
    assert "1 failed, 33 passed, 1 skipped, 112 deselected, 2 errors in" in last_line(capsys)


def test_a_run_without_failures_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [printing("unit", "=== 3 passed in 5.00s ==="), printing("dags", "=== 4 deselected in 1.00s ===", code=5)]

    assert run(parts, lanes=3) == 0
    assert "= 0 failed, 3 passed, 4 deselected in" in last_line(capsys)


@pytest.mark.parametrize("is_pytest", [True, False])
def test_a_part_that_breaks_off_counts_as_failed(is_pytest: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([printing("broken", "Segmentation fault", code=-11, is_pytest=is_pytest)], lanes=1) == 1
    assert "= 1 failed, 0 passed in" in last_line(capsys)


def test_the_output_of_a_part_comes_whole(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [printing(name, *(f"{name} {number}" for number in range(50))) for name in ("first", "second")]

    run(parts, lanes=2)

    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.split()[1:] and line[0] in "fs"]
    assert shown[:100] in (["first"] * 50 + ["second"] * 50, ["second"] * 50 + ["first"] * 50)


def test_a_part_gives_way_only_where_it_is_to(capsys: pytest.CaptureFixture[str]) -> None:
    niceness = (sys.executable, "-c", "import os; print('niceness', os.nice(0))")

    run([Part("goes first", niceness, False, gives_way=False), Part("fills in", niceness, False)], lanes=1)

    lines = capsys.readouterr().out.splitlines()
    first, filling = (int(line.split()[1]) for line in lines if line.startswith("niceness"))
    assert (first, filling) == (os.nice(0), min(19, os.nice(0) + 5))


def test_a_new_clone_begins_with_the_results_of_the_last_run_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    clones = [tmp_path / f"clone{number}" for number in range(4)]

    def check(clone: Path, *, code: int = 0) -> str:
        """Runs a check that appends the name of its clone to what it finds."""
        results = clone / ".check_cache"
        clone.mkdir(exist_ok=True)
        program = f"""
import pathlib, sys
results = pathlib.Path({str(results)!r}); results.mkdir(exist_ok=True)
with (results / "seen").open("a") as seen: seen.write({clone.name!r} + " ")
sys.exit({code})"""
        run([Part("check", (sys.executable, "-c", program), is_pytest=False, results=results)], lanes=1)
        return (results / "seen").read_text()

    assert check(clones[0]) == "clone0 "
    assert check(clones[1], code=1) == "clone0 clone1 "
    assert check(clones[2]) == "clone0 clone2 ", "a failed run shares nothing"
    assert check(clones[0]) == "clone0 clone0 ", "a clone that has results uses its own"
    assert check(clones[3]) == "clone0 clone0 clone3 "
    shared = tmp_path / "cache" / "deltaworks" / "check_cache"
    assert [path.name for path in shared.parent.iterdir()] == ["check_cache"]


def test_every_folder_of_tests_is_in_a_part_or_marked_as_longer() -> None:
    named = {argument for part in PARTS for argument in part.command if argument.startswith("tests/")}
    folders = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if any(path.glob("**/test_*.py"))}

    assert folders - {"tests/faults", "tests/integration"} <= named
    own = {f"tests/unit/{folder}" for folders in lanes._UNIT.values() for folder in folders}
    own |= {f"tests/spark/{folder}" for folders in lanes._SESSIONS.values() for folder in folders}
    assert own <= named
    assert all((ROOT / folder).is_dir() for folder in own)


def test_what_one_part_leaves_out_is_in_another() -> None:
    arguments = [argument for part in PARTS for argument in part.command]

    left_out = {argument.removeprefix("--ignore=") for argument in arguments if argument.startswith("--ignore=")}
    assert left_out
    assert left_out <= set(arguments)


def test_parts_try_a_share_of_the_examples_of_properties(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SHARE_VARIABLE, raising=False)
    assert examples(300) == examples(300, slow=True) == 300

    run([Part("shows", (sys.executable, "-c", f"import os; print(os.environ[{SHARE_VARIABLE!r}])"), False)], lanes=1)
    assert lanes.EXAMPLES_SHARE in capsys.readouterr().out.splitlines()

    monkeypatch.setenv(SHARE_VARIABLE, "0.4")
    assert [examples(count) for count in (3, 10, 300)] == [3, 6, 120]
    assert [examples(count, slow=True) for count in (3, 10, 300)] == [3, 6, 48]
