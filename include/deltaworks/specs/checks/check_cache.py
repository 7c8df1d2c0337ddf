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

from deltaworks.specs.project_folder import project_root
from deltaworks.specs.result_cache import ResultCache, cache_folder
from deltaworks.specs.spec_errors import SpecError

if TYPE_CHECKING:
    from deltaworks.specs.checks.project import ProjectCheck

#: Folders below `include` that declare a project.
_DECLARATION_FOLDERS = ("environments", "pipelines", "relays")
#: Projects, and states of them, that are remembered.
MAX_PROJECTS = 20
#: Folders with more than this are read each time: what is in them is not what declares a project.
MAX_BYTES = 64 * 1024 * 1024
#: Variables that a shell sets for itself.
_SHELL_VARIABLES = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES"})
#: What decides: the code of specs, and what it imports of this package.
CODE_PATTERNS = ("specs/**/*.py", "errors.py", "__init__.py")
_PACKAGE = Path(__file__).resolve().parents[2]
_SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSummary:
    """A pipeline that is declared correctly, in a line."""

    name: str
    owner: str
    source: str
    tables: int
    live: int
    gold: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectReport:
    """What is wrong with a project, what is remarkable, and what of it is right. Files are below its folder."""

    errors: list[SpecError]
    warnings: list[SpecError]
    pipelines: list[PipelineSummary]
    relays: int


def cached_project_check(root: Path | None = None) -> ProjectReport:
    """What is declared, looked through, or remembered where it was right and nothing has changed since.

    Raises:
        ConfigError: as `check_project` does.
    """
    root = root or project_root()
    files = _declaration_files(root)
    digest = _digest(root, files)
    cache = ResultCache[dict[str, Any]](
        cache_folder() / "valid_projects.json", max_entries=MAX_PROJECTS, is_valid=_is_report
    )
    if digest is not None and digest in cache:
        return _parse_report(cache.get(digest))
    # Loaded here: it loads pydantic and every spec.
    from deltaworks.specs.checks.project import check_project

    check = check_project(root=root)
    answer = ProjectReport(
        errors=check.errors,
        warnings=check.warnings,
        pipelines=[
            PipelineSummary(
                name=name,
                owner=spec.owner,
                source=f"{spec.source.kind} {spec.source.display_name()}",
                tables=len(spec.tables),
                live=len(spec.live),
                gold=len(spec.gold.tables),
                fingerprint=spec.fingerprint(),
            )
            for name, spec in check.pipelines.items()
        ],
        relays=len(check.relays),
    )
    if digest is not None and not check.errors and _reads_only_declared_files(files or (), root, check):
        cache.put(digest, _to_json(answer))
        cache.save()
    return answer


def _declaration_files(root: Path) -> list[Path] | None:
    """All files below the folders that declare a project, sorted; None where they are too large to be read in vain."""
    folders = [folder for kind in _DECLARATION_FOLDERS for folder in os.walk(root / "include" / kind)]
    files = sorted(Path(folder, name) for folder, _, names in folders for name in names)
    try:
        return files if sum(file.stat().st_size for file in files) <= MAX_BYTES else None
    except OSError:
        return None


def _digest(root: Path, files: Iterable[Path] | None) -> str | None:
    """What stands for everything that the answer depends on; None where any of it cannot be read."""
    if files is None:
        return None
    code = sorted(file for judges in CODE_PATTERNS for file in _PACKAGE.glob(judges))
    try:
        contents = [(str(file), hashlib.sha256(file.read_bytes()).hexdigest()) for file in (*files, *code)]
    except OSError:
        return None
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _SHELL_VARIABLES)
    day = int(time.time()) // _SECONDS_A_DAY
    decides = [day, sys.version, str(root), contents, variables, list(_libraries())]
    return hashlib.sha256(json.dumps(decides).encode("utf-8", "surrogateescape")).hexdigest()


def _libraries() -> Iterator[tuple[str, str]]:
    """Every library that can be imported, with its version, by the names of the folders that installers leave."""
    for key_path in sys.path:
        try:
            names = os.listdir(key_path)
        except OSError:
            continue
        yield from sorted((key_path, name) for name in names if name.endswith((".dist-info", ".egg-info", ".pth")))


def _reads_only_declared_files(files: Iterable[Path], root: Path, check: ProjectCheck) -> bool:
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


def _to_json(report: ProjectReport) -> dict[str, Any]:
    plain = asdict(report)
    plain["warnings"] = [{**warning, "file": str(warning["file"])} for warning in plain["warnings"]]
    return plain


def _parse_report(plain: Mapping[str, Any]) -> ProjectReport:
    return ProjectReport(
        errors=[],
        warnings=[SpecError(**{**warning, "file": Path(warning["file"])}) for warning in plain["warnings"]],
        pipelines=[PipelineSummary(**facts) for facts in plain["pipelines"]],
        relays=plain["relays"],
    )


def _is_report(value: Any) -> bool:
    try:
        return isinstance(_parse_report(value).relays, int)
    except (KeyError, TypeError, AttributeError):
        return False
