"""Parses a Dockerfile into stages, and a .dockerignore into the build context."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_CONTINUED = re.compile(r"\\\n\s*")
_READ = frozenset({"FROM", "USER", "RUN", "WORKDIR", "SHELL", "COPY", "ENV", "ENTRYPOINT", "CMD"})


class DockerfileError(ValueError):
    """Raised for a Dockerfile or build that Docker would refuse, or an unsupported instruction."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continuation lines joined; `line` counts from one."""

    name: str
    text: str
    line: int

    def words(self) -> tuple[str, ...]:
        """Its JSON list, or the words of its text."""
        return tuple(json.loads(self.text)) if self.text.startswith("[") else tuple(shlex.split(self.text))


@dataclass(frozen=True, slots=True)
class Stage:
    """A build stage: its base (an image or another stage), its name and its instructions."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class CopySpec:
    """A COPY: paths of the context, or of another stage if `stage` names one."""

    sources: tuple[str, ...]
    target: str
    stage: str
    owner: str


def read_dockerfile(text: str) -> tuple[Stage, ...]:
    """Returns the stages in order.

    Raises:
        DockerfileError: an unsupported instruction.
    """
    stages: list[Stage] = []
    for instruction in _instructions(text):
        if instruction.name not in _READ:
            raise DockerfileError(f"line {instruction.line}: {instruction.name} is not read here")
        if instruction.name == "FROM":
            base, *alias = instruction.text.split()
            stages.append(Stage(base, alias[1] if alias else str(len(stages)), ()))
        else:
            last = stages.pop()
            stages.append(Stage(last.base, last.name, (*last.instructions, instruction)))
    return tuple(stages)


def read_copy(instruction: Instruction) -> CopySpec:
    """Parses a COPY. Only `--from` and `--chown` are supported."""
    options = {}
    words = list(instruction.words())
    while words and words[0].startswith("--"):
        option, _, value = words.pop(0).removeprefix("--").partition("=")
        options[option] = value
    if set(options) - {"from", "chown"} or len(words) < 2:
        raise DockerfileError(f"line {instruction.line}: this COPY is not read here: {instruction.text}")
    return CopySpec(tuple(words[:-1]), words[-1], options.get("from", ""), options.get("chown", ""))


def expand(text: str, variables: dict[str, str]) -> str:
    """Substitutes `$NAME` and `${NAME}` in an ENV or a WORKDIR."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: variables.get(match[1] or match[2], ""), text)


def build_context(folder: Path) -> tuple[PurePosixPath, ...]:
    """Returns the files of the build context: .dockerignore's last matching line decides."""
    path = folder / ".dockerignore"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    files = []
    stack = [folder]
    while stack:
        for entry in sorted(stack.pop().iterdir()):
            relative = PurePosixPath(entry.relative_to(folder).as_posix())
            if entry.is_dir() and not entry.is_symlink():
                # Ignored folders such as `.git` are not traversed unless an exception may match below them.
                if not is_ignored(relative, rules) or any(_reaches(rule, relative) for rule in rules):
                    stack.append(entry)
            elif not is_ignored(relative, rules):
                files.append(relative)
    return tuple(files)


def is_ignored(path: PurePosixPath, rules: list[str]) -> bool:
    """Whether .dockerignore excludes a path: a rule matches it or one of its parent folders."""
    places = [path, *path.parents][:-1]
    ignored = False
    for rule in rules:
        pattern = rule.removeprefix("!").strip("/")
        if any(_fits(place, pattern) for place in places):
            ignored = not rule.startswith("!")
    return ignored


def _fits(path: PurePosixPath, pattern: str) -> bool:
    """Matches like Go's filepath.Match, with `**` for any number of folders; a star never matches a slash."""
    return _fit(path.parts, PurePosixPath(pattern).parts)


def _fit(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fit(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _fit(parts[1:], pattern[1:])


def _reaches(rule: str, folder: PurePosixPath) -> bool:
    """Whether an exception rule may match something below a folder."""
    return rule.startswith("!") and PurePosixPath(rule.removeprefix("!")).parts[: len(folder.parts)] == folder.parts


def _instructions(text: str) -> list[Instruction]:
    instructions: list[Instruction] = []
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not line.strip() and not pending):
            continue
        first = first or number
        pending += line + "\n"
        if not line.rstrip().endswith("\\"):
            name, _, rest = _CONTINUED.sub("", pending).strip().partition(" ")
            instructions.append(Instruction(name.upper(), rest.strip(), first))
            pending, first = "", 0
    return instructions
