"""Caches the result of `deltaworks pipelines check` if there are no errors.

The result depends on the project's files, environment variables, installed libraries and the code of the check. If none
of them changed since the last check without errors, neither the specs nor pydantic are imported, which saves nine
tenths of the time. Results expire at the end of the day (UTC).
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

#: Folders below `include` with specs.
_DECLARATION_FOLDERS = ("environments", "pipelines", "relays")
#: Maximum number of cached project states.
MAX_PROJECTS = 20
#: Larger folders are not cached: they contain more than specs.
MAX_BYTES = 64 * 1024 * 1024
#: Variables that shells set themselves.
_SHELL_VARIABLES = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES"})
#: The code that the result depends on.
CODE_PATTERNS = ("specs/**/*.py", "errors/*.py", "errors/conditions.json", "__init__.py")
_PACKAGE = Path(__file__).resolve().parents[2]
_SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSummary:
    """A line of the check's summary, for one valid pipeline."""

    name: str
    owner: str
    source: str
    tables: int
    live: int
    gold: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectReport:
    """Errors and warnings of a project, and summaries of its valid specs. File paths are relative to the project
    folder.
    """

    errors: list[SpecError]
    warnings: list[SpecError]
    pipelines: list[PipelineSummary]
    relays: int


def cached_project_check(root: Path | None = None) -> ProjectReport:
    """Returns the check's result, from the cache if nothing changed since the last check without errors.

    Raises:
        ConfigError: see `check_project`.
    """
    root = root or project_root()
    files = _declaration_files(root)
    digest = _digest(root, files)
    cache = ResultCache[dict[str, Any]](
        cache_folder() / "valid_projects.json", max_entries=MAX_PROJECTS, is_valid=_is_report
    )
    if digest is not None and digest in cache:
        return _parse_report(cache.get(digest))
    # Imported lazily: it imports pydantic and all specs.
    from deltaworks.specs.checks.project import check_project

    check = check_project(root=root)
    project_report = ProjectReport(
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
        cache.put(digest, _to_json(project_report))
        cache.save()
    return project_report


def _declaration_files(root: Path) -> list[Path] | None:
    """Returns all spec files, sorted; None if they are too large to hash."""
    folders = [folder for kind in _DECLARATION_FOLDERS for folder in os.walk(root / "include" / kind)]
    files = sorted(Path(folder, name) for folder, _, names in folders for name in names)
    try:
        return files if sum(file.stat().st_size for file in files) <= MAX_BYTES else None
    except OSError:
        return None


def _digest(root: Path, files: Iterable[Path] | None) -> str | None:
    """Returns a digest of everything the result depends on; None if a part cannot be read."""
    if files is None:
        return None
    code = sorted(file for pattern in CODE_PATTERNS for file in _PACKAGE.glob(pattern))
    try:
        contents = [(str(file), hashlib.sha256(file.read_bytes()).hexdigest()) for file in (*files, *code)]
    except OSError:
        return None
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _SHELL_VARIABLES)
    day = int(time.time()) // _SECONDS_A_DAY
    decides = [day, sys.version, str(root), contents, variables, list(_libraries())]
    return hashlib.sha256(json.dumps(decides).encode("utf-8", "surrogateescape")).hexdigest()


def _libraries() -> Iterator[tuple[str, str]]:
    """Yields all installed libraries with their versions, read from the names of their dist-info folders."""
    for key_path in sys.path:
        try:
            names = os.listdir(key_path)
        except OSError:
            continue
        yield from sorted((key_path, name) for name in names if name.endswith((".dist-info", ".egg-info", ".pth")))


def _reads_only_declared_files(files: Iterable[Path], root: Path, check: ProjectCheck) -> bool:
    """Returns whether all SQL files that the specs name are among these files; SQL can be anywhere in the project."""
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
