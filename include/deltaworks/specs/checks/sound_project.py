"""The answer of `deltaworks pipelines check`, remembered where nothing was wrong.

Its answer follows from the files that declare the project, the variables of the process, the libraries that are
installed, and the code that looks. Where none of them has changed since a reading without mistakes, nothing is read
again: neither the specs nor the library that validates them is loaded, which take nine tenths of the time. An answer
is kept until the end of the day (UTC) at most, whatever else it may depend on.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaworks.specs.mistakes import Mistake
from deltaworks.specs.project_folder import project_root
from deltaworks.specs.remembered import Remembered, cache_folder

if TYPE_CHECKING:
    from deltaworks.specs.checks.project import ProjectCheck

#: Folders below `include` that declare a project.
_DECLARED = ("environments", "pipelines", "relays")
#: Projects, and states of them, that are remembered.
MOST_PROJECTS = 20
#: Folders with more than this are read each time: what is in them is not what declares a project.
MOST_BYTES = 64 * 1024 * 1024
#: Variables that a shell sets for itself.
_OF_SHELLS = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES"})
#: What decides: the code of specs, and what it imports of this package.
JUDGES = ("specs/**/*.py", "errors.py", "__init__.py")
_PACKAGE = Path(__file__).resolve().parents[2]
_SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """A pipeline that is declared correctly, in a line."""

    name: str
    owner: str
    source: str
    tables: int
    live: int
    gold: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectAnswer:
    """What is wrong with a project, what is remarkable, and what of it is right. Files are below its folder."""

    mistakes: list[Mistake]
    remarks: list[Mistake]
    pipelines: list[PipelineFacts]
    relays: int


def project_answer(root: Path | None = None) -> ProjectAnswer:
    """What is declared, looked through, or remembered where it was right and nothing has changed since.

    Raises:
        ConfigError: as `check_project` does.
    """
    root = root or project_root()
    files = _declaring_files(root)
    digest = _digest(root, files)
    sound = Remembered[dict[str, Any]](cache_folder() / "sound_projects.json", most=MOST_PROJECTS, is_answer=_is_answer)
    if digest is not None and digest in sound:
        return _answer_of(sound.answer(digest))
    # Loaded here: it loads pydantic and every spec.
    from deltaworks.specs.checks.project import check_project

    check = check_project(root=root)
    answer = ProjectAnswer(
        mistakes=check.mistakes,
        remarks=check.remarks,
        pipelines=[
            PipelineFacts(
                name=name,
                owner=spec.owner,
                source=f"{spec.source.kind} {spec.source.place()}",
                tables=len(spec.tables),
                live=len(spec.live),
                gold=len(spec.gold.tables),
                fingerprint=spec.fingerprint(),
            )
            for name, spec in check.pipelines.items()
        ],
        relays=len(check.relays),
    )
    if digest is not None and not check.mistakes and _reads_only(files or (), root, check):
        sound.remember(digest, _plain(answer))
        sound.save()
    return answer


def _declaring_files(root: Path) -> list[Path] | None:
    """All files below the folders that declare a project, sorted; None where they are too large to be read in vain."""
    folders = [folder for kind in _DECLARED for folder in os.walk(root / "include" / kind)]
    files = sorted(Path(folder, name) for folder, _, names in folders for name in names)
    try:
        return files if sum(file.stat().st_size for file in files) <= MOST_BYTES else None
    except OSError:
        return None


def _digest(root: Path, files: Iterable[Path] | None) -> str | None:
    """What stands for everything that the answer depends on; None where any of it cannot be read."""
    if files is None:
        return None
    code = sorted(file for judges in JUDGES for file in _PACKAGE.glob(judges))
    try:
        contents = [(str(file), hashlib.sha256(file.read_bytes()).hexdigest()) for file in (*files, *code)]
    except OSError:
        return None
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _OF_SHELLS)
    day = int(time.time()) // _SECONDS_A_DAY
    decides = [day, sys.version, str(root), contents, variables, list(_libraries())]
    return hashlib.sha256(json.dumps(decides).encode("utf-8", "surrogateescape")).hexdigest()


def _libraries() -> Iterator[tuple[str, str]]:
    """Every library that can be imported, with its version, by the names of the folders that installers leave."""
    for place in sys.path:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        yield from sorted((place, name) for name in names if name.endswith((".dist-info", ".egg-info", ".pth")))


def _reads_only(files: Iterable[Path], root: Path, check: ProjectCheck) -> bool:
    """Whether the specs name no file but these: gold may name SQL that lies anywhere."""
    declared = {file.resolve() for file in files}
    for name, spec in check.pipelines.items():
        folder = root / "include" / "pipelines" / name
        named = [table.sql for table in spec.gold.tables]
        named += [view.sql for view in spec.views]
        named += [panel.sql for dashboard in spec.dashboards for panel in dashboard.panels]
        named += [reference.file for reference in spec.references if reference.file is not None]
        if any((folder / path).resolve() not in declared for path in named):
            return False
    return True


def _plain(answer: ProjectAnswer) -> dict[str, Any]:
    plain = asdict(answer)
    plain["remarks"] = [{**remark, "file": str(remark["file"])} for remark in plain["remarks"]]
    return plain


def _answer_of(plain: Mapping[str, Any]) -> ProjectAnswer:
    return ProjectAnswer(
        mistakes=[],
        remarks=[Mistake(**{**remark, "file": Path(remark["file"])}) for remark in plain["remarks"]],
        pipelines=[PipelineFacts(**facts) for facts in plain["pipelines"]],
        relays=plain["relays"],
    )


def _is_answer(value: Any) -> bool:
    try:
        return isinstance(_answer_of(value).relays, int)
    except (KeyError, TypeError, AttributeError):
        return False
