"""Reads a Dockerfile into stages, and a .dockerignore into what goes to the build."""

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
    """A Dockerfile, or a build of it, that Docker would refuse, or that has an instruction not read here."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continued lines joined; `line` counts from one."""

    name: str
    text: str
    line: int

    def words(self) -> tuple[str, ...]:
        """Its JSON list, or the words of its text."""
        return tuple(json.loads(self.text)) if self.text.startswith("[") else tuple(shlex.split(self.text))


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: what it stands on, by image or by the name of another stage, its own name, and what is done."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class CopySpec:
    """A COPY: paths of the context, or of another stage where `stage` names one."""

    sources: tuple[str, ...]
    target: str
    stage: str
    owner: str


def read_dockerfile(text: str) -> tuple[Stage, ...]:
    """The stages in their order.

    Raises:
        DockerfileError: an instruction that is not read here.
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
    """What a COPY copies. Only `--from` and `--chown` are read."""
    options = {}
    words = list(instruction.words())
    while words and words[0].startswith("--"):
        option, _, value = words.pop(0).removeprefix("--").partition("=")
        options[option] = value
    if set(options) - {"from", "chown"} or len(words) < 2:
        raise DockerfileError(f"line {instruction.line}: this COPY is not read here: {instruction.text}")
    return CopySpec(tuple(words[:-1]), words[-1], options.get("from", ""), options.get("chown", ""))


def expand(text: str, variables: dict[str, str]) -> str:
    """`$NAME` and `${NAME}` of an ENV or a WORKDIR put in."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: variables.get(match[1] or match[2], ""), text)


def build_context(folder: Path) -> tuple[PurePosixPath, ...]:
    """The files that go to the build: all that no line of .dockerignore leaves out; the last line that fits counts."""
    path = folder / ".dockerignore"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    files = []
    stack = [folder]
    while stack:
        for entry in sorted(stack.pop().iterdir()):
            relative = PurePosixPath(entry.relative_to(folder).as_posix())
            if entry.is_dir() and not entry.is_symlink():
                # Nothing below `.git` and the like is looked at where no rule takes anything back from there.
                if not is_ignored(relative, rules) or any(_reaches(rule, relative) for rule in rules):
                    stack.append(entry)
            elif not is_ignored(relative, rules):
                files.append(relative)
    return tuple(files)


def is_ignored(path: PurePosixPath, rules: list[str]) -> bool:
    """Whether .dockerignore leaves a path out: a rule fits a path, and everything below a folder it fits."""
    places = [path, *path.parents][:-1]
    ignored = False
    for rule in rules:
        pattern = rule.removeprefix("!").strip("/")
        if any(_fits(place, pattern) for place in places):
            ignored = not rule.startswith("!")
    return ignored


def _fits(path: PurePosixPath, pattern: str) -> bool:
    """Go's filepath.Match, with `**` for any number of folders: a star is never a slash."""
    return _fit(path.parts, PurePosixPath(pattern).parts)


def _fit(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fit(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _fit(parts[1:], pattern[1:])


def _reaches(rule: str, folder: PurePosixPath) -> bool:
    """Whether an exception to the rules is about something below a folder."""
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
