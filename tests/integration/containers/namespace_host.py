"""The machine that containers run on: namespaces of network, mounts and processes of their own on this one.

Nothing of it outlives its first process, whatever becomes of the tests: the kernel ends every process in it, and with
the last one all mounts, interfaces and addresses are gone. It needs root and Linux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.waiting import eventually

PROGRAMS = ("unshare", "nsenter", "setpriv", "chroot", "mount", "ip")
BRIDGE = "compose0"
GATEWAY = "172.30.0.1"
_FIRST_ADDRESS = 2
_ENDS_WITHIN_SECONDS = 60.0


def missing_rights() -> str:
    """Why containers cannot be run here; empty where they can."""
    if os.geteuid() != 0:
        return "namespaces of network and mounts need root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    attempt = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", BRIDGE, "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"the kernel gives no namespaces: {attempt.stderr.strip()}" if attempt.returncode else ""


@dataclass(frozen=True, slots=True)
class NamespaceHost:
    """The namespaces, by the process that holds them."""

    pid: int

    @property
    def root(self) -> Path:
        """The file system as it is inside, with what is mounted there alone."""
        return Path(f"/proc/{self.pid}/root")

    def inside(self, path: Path) -> Path:
        """Where a path of the inside can be read and written from outside."""
        return self.root / path.relative_to("/")

    def command(self, words: Sequence[str]) -> list[str]:
        """The command line that runs words inside."""
        target = ["--target", str(self.pid), "--mount", "--net", "--pid"]
        return [program("nsenter"), *target, "--", program(words[0]), *words[1:]]

    def run(self, *words: str, variables: Mapping[str, str] | None = None) -> str:
        """Run a command inside to its end and return what it wrote.

        Raises:
            RuntimeError: it failed.
        """
        done = subprocess.run(
            self.command(words), env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def mount_layers(self, target: Path, lower: Sequence[Path], *, upper: Path | None = None) -> None:
        """Lay folders over each other at `target`, the first on top; what is written goes to `upper`."""
        options = f"lowerdir={':'.join(str(folder) for folder in lower)}"
        if upper is not None:
            work = upper.with_name(f"{upper.name}.work")
            for folder in (upper, work):
                folder.mkdir(parents=True, exist_ok=True)
            options += f",upperdir={upper},workdir={work}"
        self.inside(target).mkdir(parents=True, exist_ok=True)
        self.run("mount", "-t", "overlay", "overlay", "-o", options, str(target))

    def bind(self, source: Path, target: Path, *, read_only: bool = False) -> None:
        """Show a file or a folder at a second path."""
        place = self.inside(target)
        if source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        self.run("mount", "--bind", "-o", "ro" if read_only else "rw", str(source), str(target))

    def connect(self, pid: int, *, interface: str, address: str) -> None:
        """Give the network namespace of a process an interface with an address that all others reach."""
        self.run(
            "ip", "link", "add", interface, "type", "veth", "peer", "name", "eth0", "netns", str(self._inner_pid(pid))
        )
        self.run("ip", "link", "set", interface, "master", BRIDGE, "up")

    def _inner_pid(self, pid: int) -> int:
        """The number that a process has inside."""
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        return int(numbers[1])


@contextmanager
def namespace_host() -> Iterator[NamespaceHost]:
    """A host until the block ends; then nothing of it is left."""
    unshare = [program("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    process = subprocess.Popen(
        # With the thread that starts it, were that killed, it ends too.
        [program("setpriv"), "--pdeathsig", "KILL", *unshare, program("sleep"), "infinity"],
        stdin=subprocess.DEVNULL,
    )
    try:
        host = NamespaceHost(_first_process(process.pid))
        for words in (
            ("ip", "link", "set", "lo", "up"),
            ("ip", "link", "add", BRIDGE, "type", "bridge"),
            ("ip", "address", "add", f"{GATEWAY}/24", "dev", BRIDGE),
            ("ip", "link", "set", BRIDGE, "up"),
        ):
            host.run(*words)
        yield host
    finally:
        # The first process inside ends once all others there have; `unshare` waits for it.
        for first in psutil.Process(process.pid).children():
            first.kill()
        try:
            process.wait(_ENDS_WITHIN_SECONDS)
        finally:
            process.kill()


def container_address(number: int) -> str:
    """The address of the container of this number."""
    return f"{GATEWAY.rpartition('.')[0]}.{_FIRST_ADDRESS + number}"


def program(name: str) -> str:
    """The path of a program of this machine; the PATH of a container says nothing about it."""
    return name if name.startswith("/") else (shutil.which(name) or name)


def _first_process(pid: int) -> int:
    """The process that is the first one of its namespace, below the one that made it."""
    eventually(lambda: bool(psutil.Process(pid).children()), "unshare has started its program")
    child = psutil.Process(pid).children()[0]
    eventually(lambda: child.name() == "sleep", "the namespaces are made")
    return child.pid
