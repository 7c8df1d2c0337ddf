"""The host of the test containers: separate network, mount and process namespaces on this machine.

The kernel ends every process in it with its first process, and with the last one all mounts, interfaces and addresses,
even if the tests are killed. Needs root and Linux.
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

from tests.processes import run_process
from tests.waiting import eventually

PROGRAMS = ("unshare", "nsenter", "setpriv", "chroot", "mount", "ip")
BRIDGE = "compose0"
GATEWAY = "172.30.0.1"
_FIRST_ADDRESS = 2
_ENDS_WITHIN_SECONDS = 60.0


def missing_rights() -> str:
    """Returns why containers cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "namespaces of network and mounts need root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    attempt = run_process(
        ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", BRIDGE, "type", "bridge"]
    )
    return f"the kernel gives no namespaces: {attempt.stderr.strip()}" if attempt.returncode else ""


@dataclass(frozen=True, slots=True)
class NamespaceHost:
    """The namespaces, identified by the process that holds them."""

    pid: int

    @property
    def root(self) -> Path:
        """The file system inside, including its private mounts."""
        return Path(f"/proc/{self.pid}/root")

    def inside(self, path: Path) -> Path:
        """Returns the outside path of an inside path."""
        return self.root / path.relative_to("/")

    def command(self, words: Sequence[str]) -> list[str]:
        """Returns the command line that runs words inside."""
        target = ["--target", str(self.pid), "--mount", "--net", "--pid"]
        return [program("nsenter"), *target, "--", program(words[0]), *words[1:]]

    def run(self, *words: str, variables: Mapping[str, str] | None = None) -> str:
        """Runs a command inside to its end; returns its output.

        Raises:
            RuntimeError: it failed.
        """
        done = run_process(self.command(words), env=variables, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def mount_layers(self, target: Path, lower: Sequence[Path], *, upper: Path | None = None) -> None:
        """Mounts folders as an overlay at `target`, the first one on top; writes go to `upper`."""
        options = f"lowerdir={':'.join(str(folder) for folder in lower)}"
        if upper is not None:
            work = upper.with_name(f"{upper.name}.work")
            for folder in (upper, work):
                folder.mkdir(parents=True, exist_ok=True)
            options += f",upperdir={upper},workdir={work}"
        self.inside(target).mkdir(parents=True, exist_ok=True)
        self.run("mount", "-t", "overlay", "overlay", "-o", options, str(target))

    def bind(self, source: Path, target: Path, *, read_only: bool = False) -> None:
        """Bind-mounts a file or a folder to a second path."""
        place = self.inside(target)
        if source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        self.run("mount", "--bind", "-o", "ro" if read_only else "rw", str(source), str(target))

    def connect(self, pid: int, *, interface: str, address: str) -> None:
        """Adds a network interface to a process's namespace, with an address that all other containers reach."""
        self.run(
            "ip", "link", "add", interface, "type", "veth", "peer", "name", "eth0", "netns", str(self._inner_pid(pid))
        )
        self.run("ip", "link", "set", interface, "master", BRIDGE, "up")

    def _inner_pid(self, pid: int) -> int:
        """Returns a process's id inside the namespace."""
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        return int(numbers[1])


@contextmanager
def namespace_host() -> Iterator[NamespaceHost]:
    """Runs a host inside the block and removes it completely afterwards."""
    unshare = [program("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    process = subprocess.Popen(
        # It also ends with the thread that starts it, if that is killed.
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
        # The first process inside ends after all others there; `unshare` waits for it.
        for first in psutil.Process(process.pid).children():
            first.kill()
        try:
            process.wait(_ENDS_WITHIN_SECONDS)
        finally:
            process.kill()


def container_address(number: int) -> str:
    """Returns the address of the container with this number."""
    return f"{GATEWAY.rpartition('.')[0]}.{_FIRST_ADDRESS + number}"


def program(name: str) -> str:
    """Returns the path of a program of this machine, independent of a container's PATH."""
    return name if name.startswith("/") else (shutil.which(name) or name)


def _first_process(pid: int) -> int:
    """Returns the first process of its namespace, a child of the process that created it."""
    eventually(lambda: bool(psutil.Process(pid).children()), "unshare has started its program")
    child = psutil.Process(pid).children()[0]
    eventually(lambda: child.name() == "sleep", "the namespaces are made")
    return child.pid
