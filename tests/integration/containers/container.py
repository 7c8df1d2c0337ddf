"""One container: a process in new namespaces, on the files of an image, as the image's user."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.integration.containers.health import Probe
from tests.integration.containers.image_build import Image, ids_of
from tests.integration.containers.namespace_host import GATEWAY, NamespaceHost, program
from tests.integration.containers.specs import MountSpec
from tests.waiting import eventually

_STARTS_WITHIN_SECONDS = 30.0
_OUTPUT = 2_000
#: First process of the container. Runs as root with the machine's mounts until it becomes the service. Arguments: the
#: root, the host name, the address, the gateway, then mounts up to `--`, whether the root is writable, the command.
_ENTER = """\
set -eu
root=$1 name=$2 address=$3 gateway=$4
shift 4
hostname "$name"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
while [ "$1" != -- ]; do
    if [ "$3" = tmpfs ]; then mount -t tmpfs -o mode=1777 tmpfs "$root$2"; else mount --bind -o "$3" "$1" "$root$2"; fi
    shift 3
done
shift
if [ "$1" = read-only ]; then mount -o remount,bind,ro "$root"; fi
shift
read -r go
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "$gateway"
PATH=$CONTAINER_PATH
unset CONTAINER_PATH
export PATH
exec "$@" </dev/null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Settings of a container; `words` are entry point and command."""

    name: str
    image: Image
    words: tuple[str, ...]
    variables: Mapping[str, str]
    hostname: str
    address: str
    hosts: Mapping[str, str]
    mounts: tuple[MountSpec, ...]
    number: int
    is_read_only: bool = False
    tmpfs: tuple[str, ...] = ()


class Container:
    """A started container. Its files are deleted with it; volumes remain."""

    def __init__(self, host: NamespaceHost, folder: Path, spec: ContainerSpec, *, log: Path) -> None:
        self._host = host
        self._spec = spec
        self._image = spec.image
        self._root = folder / "root"
        self._folder = folder
        self._ids = (0, 0)
        self.variables: dict[str, str] = {}
        self._process = self._start(log)
        self.pid = self._first_process()
        host.connect(self.pid, interface=f"veth{spec.number}", address=spec.address)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()
        self.started_at = time.monotonic()

    @property
    def root(self) -> Path:
        """Path of its files as seen from outside, without volumes."""
        return self._host.inside(self._root)

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits for its end; returns the exit status, or None if it still runs after these seconds."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, *, grace_seconds: float) -> int:
        """Stops it like `docker stop`: SIGTERM, then SIGKILL after the grace period; returns the exit status."""
        self._signal(signal.SIGTERM)
        if self.wait(grace_seconds) is None:
            self.kill()
        return self._process.wait()

    def kill(self) -> None:
        """Kills all its processes immediately."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def kill_service(self) -> int:
        """Kills its processes but keeps its namespaces: the first process is only stopped.

        If the service itself is the first process, it is stopped too. Returns the number of killed processes.
        """
        os.kill(self.pid, signal.SIGSTOP)
        killed = 0
        while others := [each for each in self.processes() if each.pid != self.pid]:
            for other in others:
                with contextlib.suppress(psutil.NoSuchProcess):
                    other.kill()
            killed += len(others)
            psutil.wait_procs(others, timeout=1)
        return killed

    def execute(
        self, words: Sequence[str], *, timeout_seconds: float = 60.0, variables: Mapping[str, str] | None = None
    ) -> Probe:
        """Runs a command in it like `docker exec`, with its variables and user."""
        owner, group = self._ids
        target = ["--target", str(self.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
        user = ["--setuid", str(owner), "--setgid", str(group)]
        start = time.monotonic()
        process = subprocess.Popen(
            [program("nsenter"), *target, *user, "/usr/bin/env", "-C", self._image.workdir, *words],
            env={**self.variables, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
            status = process.returncode
        except subprocess.TimeoutExpired:
            for member in (*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)):
                member.kill()
            output, status = process.communicate()[0], -1
        return Probe(status, output[-_OUTPUT:].strip(), time.monotonic() - start)

    def command_lines(self) -> list[str]:
        """Returns the command lines of its processes that have not ended meanwhile."""
        lines = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                lines.append(" ".join(process.cmdline()))
        return lines

    def processes(self) -> list[psutil.Process]:
        """Returns all live processes in its namespace."""
        namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        members = []
        for process in psutil.process_iter():
            try:
                if os.readlink(f"/proc/{process.pid}/ns/pid") == namespace and process.status() != "zombie":
                    members.append(process)
            except (OSError, psutil.Error):
                continue
        return members

    def _start(self, log: Path) -> subprocess.Popen[bytes]:
        spec, image = self._spec, self._spec.image
        shutil.rmtree(self._folder, ignore_errors=True)
        image.mount(self._host, self._root, upper=self._folder / "layer")
        passwd = self.root / "etc/passwd"
        self._ids = ids_of(image.user, passwd)
        home = next(
            (line.split(":")[5] for line in passwd.read_text().splitlines() if line.split(":")[2] == str(self._ids[0])),
            "/",
        )
        self.variables = {"HOSTNAME": spec.hostname, "HOME": home, **image.variables, **spec.variables}
        mounts = [
            *self._network_files(),
            *((mount.source, mount.target, "ro" if mount.read_only else "rw") for mount in spec.mounts),
            *(("/", target, "tmpfs") for target in spec.tmpfs),
        ]
        for source, target, _ in mounts:
            place = self.root / target.lstrip("/")
            if not place.exists():
                place.mkdir(parents=True) if Path(source).is_dir() else place.touch()
        owner, group = self._ids
        command = [
            *("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"),
            *(program("bash"), "-c", _ENTER, "bash", str(self._root), spec.hostname, spec.address, GATEWAY),
            *(word for mount in mounts for word in mount),
            *("--", "read-only" if spec.is_read_only else "writable"),
            *(program("chroot"), f"--userspec={owner}:{group}", f"--groups={group}", str(self._root)),
            *("/usr/bin/env", "-C", image.workdir, *spec.words),
        ]
        path = self.variables.get("PATH", os.defpath)
        with log.open("ab") as output:
            return subprocess.Popen(
                self._host.command(command),
                env={**self.variables, "PATH": os.environ["PATH"], "CONTAINER_PATH": path},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _network_files(self) -> list[tuple[str, str, str]]:
        """Writes hosts and resolver files: container names as in Docker's DNS, and no other resolver."""
        hosts = {"localhost": "127.0.0.1", **self._spec.hosts, self._spec.hostname: self._spec.address}
        texts = {
            "hosts": "".join(f"{address}\t{name}\n" for name, address in hosts.items()),
            "resolv.conf": "",
            "hostname": f"{self._spec.hostname}\n",
        }
        for name, text in texts.items():
            (self._folder / name).write_text(text, encoding="utf-8")
        return [(str(self._folder / name), f"/etc/{name}", "ro") for name in texts]

    def _first_process(self) -> int:
        """Returns the container's first process by this machine's process ids."""

        def candidates() -> list[int]:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._spec.name} ended with {self._process.returncode} before it was there")
            below = psutil.Process(self._process.pid).children(recursive=True)
            return [process.pid for process in below if _namespaces(process.pid) == 3]

        eventually(lambda: bool(candidates()), f"{self._spec.name} is there", seconds=_STARTS_WITHIN_SECONDS)
        return candidates()[0]

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.kill(self.pid, number)


def _namespaces(pid: int) -> int:
    """Returns in how many nested process namespaces a process is: this machine's, the host's and its container's."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return len(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()) - 1
