"""Builds images from a Dockerfile without Docker: executes COPY and RUN on overlay layers.

Nothing is downloaded: `apt-get` and `useradd` do nothing, and the environment is this checkout's, provided once its
lock files are in the image. All other parts of a RUN are executed: folders, owners, permissions, and the check of the
jars, which are present already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from tests.integration.containers.base_images import BaseImage, base_image
from tests.integration.containers.dockerfile import (
    CopySpec,
    DockerfileError,
    Instruction,
    Stage,
    build_context,
    expand,
    read_copy,
    read_dockerfile,
)
from tests.integration.containers.environment_layer import VENV, environment_layers
from tests.integration.containers.namespace_host import NamespaceHost, program
from tests.processes import run_process

#: Folders of this machine visible in containers, below the base image's files.
_SHOWN = tuple(name for name in ("bin", "etc", "lib", "lib64", "sbin", "usr") if Path("/", name).is_dir())
_EMPTY = ("dev", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "var/lib/apt/lists", "var/log", "var/run")
_SHIMS = "/run/shims"
_PASS = "#!/bin/sh\nexit 0\n"
#: `python -m venv` finds the environment already present; other commands go to the real Python.
_PYTHON = '#!/bin/sh\n[ "$1 $2" = "-m venv" ] && exit 0\nPATH="${PATH#/run/shims:}" exec python "$@"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Layers of files, topmost first, and how a container of them starts.

    Attributes:
        base: the lowest layer, from the substitute of a third-party image.
        environments: layers of a Python environment, by its path.
        mounts: folders of this machine by path, read-only.
    """

    layers: tuple[Path, ...]
    base: Path
    variables: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    user: str
    workdir: str
    environments: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    mounts: Mapping[str, Path] = field(default_factory=dict)

    def mount(self, host: NamespaceHost, root: Path, *, upper: Path) -> None:
        """Mounts the files at `root`; writes go to `upper`."""
        host.mount_layers(root, self.layers, upper=upper)
        for name in _SHOWN:
            if not (self.base / name).is_symlink():
                host.mount_layers(root / name, (self.base / name, Path("/", name)))
        python = Path(sys.base_prefix).resolve()
        if python.parts[1] not in _SHOWN:
            host.bind(python, root / python.relative_to("/"), read_only=True)
        for path, folder in self.mounts.items():
            host.bind(folder, root / path.lstrip("/"), read_only=True)
        for path, layers in self.environments.items():
            written = upper.with_name(f"{upper.name}{path.replace('/', '-')}")
            host.mount_layers(root / path.lstrip("/"), layers, upper=written)
            owner = layers[0].stat()
            os.chown(host.inside(root) / path.lstrip("/"), owner.st_uid, owner.st_gid)


class ImageBuilder:
    """Builds in a separate folder. `fetched` are folders that a stage already has, by stage and path in it."""

    def __init__(
        self, host: NamespaceHost, folder: Path, *, fetched: Mapping[str, Mapping[str, Path]] | None = None
    ) -> None:
        self._host = host
        self._folder = folder
        self._fetched = fetched or {}
        self._stages: dict[str, _BuiltStage] = {}

    def base(self, reference: str) -> Image:
        """Returns the substitute for a third-party image."""
        start = base_image(reference)
        layer = self._folder / reference.replace("/", "-").replace(":", "-")
        if not layer.exists():
            self._lay_base(start, layer)
        return Image(
            layers=(layer,),
            base=layer,
            variables=start.variables,
            entrypoint=start.entrypoint,
            command=start.command,
            user=start.user,
            workdir=start.workdir,
            mounts=start.mounts,
        )

    def build(self, context: Path, *, target: str = "") -> Image:
        """Builds a stage of `context/Dockerfile`, by default the last one, after the stages it needs. A stage is built
        once.

        Raises:
            DockerfileError: Docker would refuse the build. Contains the line, and the missing file or RUN's output.
        """
        stages = {stage.name: stage for stage in read_dockerfile((context / "Dockerfile").read_text(encoding="utf-8"))}
        target = target or next(reversed(stages), "")
        if target not in stages:
            raise DockerfileError(f"{context}/Dockerfile has no stage {target}")
        return self._stage(stages[target], context, stages).image

    def _stage(self, stage: Stage, context: Path, stages: Mapping[str, Stage]) -> _BuiltStage:
        if stage.name not in self._stages:
            copies = [read_copy(each) for each in stage.instructions if each.name == "COPY"]
            for needed in (stage.base, *(copy.stage for copy in copies)):
                if needed in stages:
                    self._stage(stages[needed], context, stages)
            built = _StageBuild(
                host=self._host,
                folder=self._folder / f"stage-{stage.name}",
                context=context,
                allowed=frozenset(build_context(context)),
                stages=self._stages,
                start=self._stages[stage.base].image if stage.base in stages else self.base(stage.base),
            )
            self._stages[stage.name] = built.build(stage, self._fetched.get(stage.name, {}))
        return self._stages[stage.name]

    def _lay_base(self, start: BaseImage, layer: Path) -> None:
        layer.mkdir(parents=True)
        layer.chmod(0o755)
        for name in _SHOWN:
            link = Path("/", name)
            (layer / name).symlink_to(link.readlink()) if link.is_symlink() else (layer / name).mkdir()
        for name in _EMPTY:
            (layer / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (layer / name).mkdir(parents=True)
            (layer / name).chmod(0o1777)
        for path, (owner, group) in start.folders.items():
            folder = layer / path.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            os.chown(folder, owner, group)
            folder.chmod(0o775)
        for path, text in start.files.items():
            _write_program(layer / path.lstrip("/"), text)
        accounts = Path("/etc/passwd").read_text(encoding="utf-8")
        (layer / "etc" / "passwd").write_text(accounts + "".join(f"{line}\n" for line in start.accounts))


@dataclass(frozen=True, slots=True)
class _BuiltStage:
    image: Image
    #: Path of its files on the host.
    root: Path


class _StageBuild:
    """Builds one stage: its instructions change the image and the files below its root."""

    def __init__(
        self,
        *,
        host: NamespaceHost,
        folder: Path,
        context: Path,
        allowed: frozenset[PurePosixPath],
        stages: Mapping[str, _BuiltStage],
        start: Image,
    ) -> None:
        self._host = host
        self._context = context
        self._allowed = allowed
        self._stages = stages
        self._root = folder / "root"
        self._layer = folder / "layer"
        self._environment = folder / "environment"
        self._image = start
        self._shell: tuple[str, ...] = ("/bin/sh", "-c")

    def build(self, stage: Stage, fetched: Mapping[str, Path]) -> _BuiltStage:
        self._layer.mkdir(parents=True)
        self._layer.chmod(0o755)
        self._image.mount(self._host, self._root, upper=self._layer)
        for instruction in stage.instructions:
            for path, source in fetched.items():
                if self._place(str(PurePosixPath(path).parent)).is_dir() and not self._place(path).is_dir():
                    self._host.bind(source, self._root / path.lstrip("/"), read_only=True)
            self._obey(instruction)
        return _BuiltStage(replace(self._image, layers=(self._layer, *self._image.layers)), self._root)

    def _obey(self, instruction: Instruction) -> None:
        image = self._image
        match instruction.name:
            case "USER":
                self._image = replace(image, user=instruction.text)
            case "WORKDIR":
                self._image = replace(image, workdir=expand(instruction.text, dict(image.variables)))
            case "SHELL":
                self._shell = instruction.words()
            case "ENTRYPOINT":
                self._image = replace(image, entrypoint=instruction.words(), command=())
            case "CMD":
                self._image = replace(image, command=instruction.words())
            case "ENV":
                pairs = dict(word.split("=", 1) for word in instruction.words())
                put = {name: expand(value, dict(image.variables)) for name, value in pairs.items()}
                self._image = replace(image, variables={**image.variables, **put})
            case "COPY":
                self._copy(read_copy(instruction), instruction.line)
            case "RUN":
                self._run(instruction)

    def _copy(self, copy: CopySpec, line: int) -> None:
        source_root = self._host.inside(self._stages[copy.stage].root) if copy.stage else self._context
        target = self._place(str(PurePosixPath(self._image.workdir) / copy.target))
        owner = ids_of(copy.owner or "0:0", self._place("/etc/passwd"))
        for text in copy.sources:
            source = source_root / text.lstrip("/")
            files = self._files_of(text) if not copy.stage else None
            if not source.exists() or files == frozenset():
                raise DockerfileError(f'line {line}: "{text}": not found in {copy.stage or "the build context"}')
            into = target / source.name if copy.target.endswith("/") and not source.is_dir() else target
            _lay(source, into, owner, files)

    def _files_of(self, text: str) -> frozenset[PurePosixPath]:
        """Returns the context's files at or below a path, relative to it, without those .dockerignore excludes."""
        path = PurePosixPath(text)
        return frozenset(file.relative_to(path) for file in self._allowed if file == path or path in file.parents)

    def _run(self, instruction: Instruction) -> None:
        if f"venv {VENV}" in instruction.text and VENV not in self._image.environments:
            self._make_environment()
        for name, text in {"apt-get": _PASS, "useradd": _PASS, "python": _PYTHON}.items():
            _write_program(self._place(f"{_SHIMS}/{name}"), text)
        variables = {**self._image.variables, "HOME": "/tmp"}
        variables["PATH"] = f"{_SHIMS}:{variables['PATH']}"
        words = [*self._shell, instruction.text]
        done = run_process(
            container_command(self._host, self._image, self._root, words, self._place("/etc/passwd")),
            env=variables,
            stdin=subprocess.DEVNULL,
        )
        shutil.rmtree(self._place(_SHIMS))
        if done.returncode:
            output = f"{done.stdout}{done.stderr}".strip()
            raise DockerfileError(f"line {instruction.line}: RUN ended with {done.returncode}: {output}")

    def _make_environment(self) -> None:
        """Mounts the environment at the path of `python -m venv`, with an installer that only checks lock files."""
        layers = environment_layers(self._environment)
        self._place(VENV).mkdir(parents=True)
        self._host.mount_layers(self._root / VENV.lstrip("/"), (layers.installer, *layers.installed))
        self._image = replace(self._image, environments={**self._image.environments, VENV: layers.installed})

    def _place(self, path: str) -> Path:
        return self._host.inside(self._root) / path.lstrip("/")


def ids_of(user: str, passwd: Path) -> tuple[int, int]:
    """Returns numeric user and group for a name or number, with or without a group."""
    lines = [line.split(":") for line in passwd.read_text(encoding="utf-8").splitlines()]
    name, _, group = user.partition(":")
    account = next((line for line in lines if name in (line[0], line[2])), None)
    number = int(account[2]) if account else int(name)
    return number, int(group) if group else int(account[3] if account else 0)


def container_command(host: NamespaceHost, image: Image, root: Path, words: list[str], passwd: Path) -> list[str]:
    """Returns the command line that runs words on the files of an image, without network and as its user."""
    owner, group = ids_of(image.user, passwd)
    unshare = ["unshare", "--net", "--ipc", "--pid", "--fork", "--kill-child"]
    chroot = [program("chroot"), f"--userspec={owner}:{group}", f"--groups={group}", str(root)]
    return host.command([*unshare, *chroot, "/usr/bin/env", "-C", image.workdir, *words])


def _lay(source: Path, target: Path, owner: tuple[int, int], files: frozenset[PurePosixPath] | None) -> None:
    """Copies a file, the content of a folder, or only the given files of it."""
    if not source.is_dir():
        _make_folders(target.parent, owner)
        shutil.copy(source, target)
        os.chown(target, *owner)
        return
    _make_folders(target, owner)
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        if path.is_dir():
            if files is None:
                _make_folders(target / relative, owner)
        elif files is None or PurePosixPath(relative.as_posix()) in files:
            _make_folders((target / relative).parent, owner)
            shutil.copy(path, target / relative)
            os.chown(target / relative, *owner)


def _make_folders(folder: Path, owner: tuple[int, int]) -> None:
    """Creates a folder and its missing parents, all with the owner of the copy."""
    missing = [folder, *folder.parents]
    for place in reversed([place for place in missing if not place.exists()]):
        place.mkdir()
        os.chown(place, *owner)


def _write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
