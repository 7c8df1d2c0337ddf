"""Substitutes for third-party images: programs of this machine with equivalent entry points.

`apache/airflow` provides an entry point that waits for Airflow's database, and a script that trims logs. `python`
provides dumb-init and a user, which the build adds to the real one.
`postgres` provides an entry point that creates the database once, without network, and then serves it. `apache/kafka`
provides one that reads the broker's settings from variables, and a tool that asks a broker for its versions. The
programs are this machine's: Python with the environment's packages, Java, Debian's PostgreSQL and Kafka's jars.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deltaworks.build.jars import ensure_broker_jars

AIRFLOW_USER = (50000, 0)
#: Variables that python sets and this project's services can observe.
_PYTHON_VARIABLES = {"LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin"}
_AIRFLOW_ENTRYPOINT = """\
#!/usr/bin/env bash
# Stands for the entry point of apache/airflow: waits for the database, then runs bash, python or a command of airflow.
set -euo pipefail
umask 0002
if [[ "${CONNECTION_CHECK_MAX_COUNT:=20}" -gt 0 ]]; then
    for ((attempt = 1; ; attempt++)); do
        if answer="$(airflow db check 2>&1)"; then break; fi
        if [[ "${attempt}" -ge "${CONNECTION_CHECK_MAX_COUNT}" ]]; then echo "${answer}" >&2; exit 1; fi
        sleep "${CONNECTION_CHECK_SLEEP_TIME:-3}"
    done
fi
case "${1:-}" in
    bash) shift; exec /bin/bash "$@" ;;
    python) shift; exec python "$@" ;;
    airflow) shift ;;
esac
exec airflow "$@"
"""
_DUMB_INIT = """\
#!@python@ -IS
# Stands for dumb-init: the first process of a container, which hands signals on to its child's session, takes in
# processes whose parents are gone, and ends as its child does.
import os, signal, sys

command = [word for word in sys.argv[1:] if word != "--"] if sys.argv[1:2] == ["--"] else sys.argv[1:]
child = os.fork()
if child == 0:
    os.setsid()
    os.execvp(command[0], command)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda received, _: os.killpg(child, received))
while True:
    ended, status = os.waitpid(-1, 0)
    if ended == child:
        code = os.waitstatus_to_exitcode(status)
        sys.exit(code if code >= 0 else 128 - code)
"""
_POSTGRES_ENTRYPOINT = """\
#!/usr/bin/env bash
# Stands for the entry point of postgres: creates the database in an empty volume, then serves it.
set -euo pipefail
: "${POSTGRES_PASSWORD:?is needed to create the database}"
data=/var/lib/postgresql/data
if [[ "$(id --user)" = 0 ]]; then
    mkdir -p "${data}" /var/run/postgresql
    chown postgres:postgres "${data}" /var/run/postgresql
    chmod 0700 "${data}"
    exec setpriv --reuid postgres --regid postgres --init-groups bash "$0" "$@"
fi
if [[ ! -s "${data}/PG_VERSION" ]]; then
    initdb --pgdata="${data}" --username="${POSTGRES_USER:-postgres}" --auth-local=trust --auth-host=scram-sha-256 \\
        --pwfile=<(printf '%s\\n' "${POSTGRES_PASSWORD}")
    echo 'host all all all scram-sha-256' >> "${data}/pg_hba.conf"
    # The official image, too, listens on no network before everything is there.
    pg_ctl --pgdata="${data}" --options="-c listen_addresses=''" --wait start
    createdb --username="${POSTGRES_USER:-postgres}" "${POSTGRES_DB:-postgres}"
    pg_ctl --pgdata="${data}" --mode=fast --wait stop
fi
unset POSTGRES_PASSWORD
exec "$@" -D "${data}" -c listen_addresses='*'
"""
_KAFKA_ENTRYPOINT = """\
#!/usr/bin/env bash
# Stands for the entry point of apache/kafka: variables become settings, the folder is formatted once, the broker runs.
set -euo pipefail
properties=/opt/kafka/config/server.properties
for variable in "${!KAFKA_@}"; do
    [[ "${variable}" = KAFKA_HEAP_OPTS ]] && continue
    name="${variable#KAFKA_}"
    name="${name,,}"
    echo "${name//_/.}=${!variable}"
done > "${properties}"
kafka=(java ${KAFKA_HEAP_OPTS:-} -XX:TieredStopAtLevel=1 -cp "/opt/kafka/libs/*")
"${kafka[@]}" kafka.tools.StorageTool format --ignore-formatted --cluster-id="${CLUSTER_ID}" -c "${properties}"
exec "${kafka[@]}" kafka.Kafka "${properties}"
"""
_KAFKA_VERSIONS = """\
#!@python@ -IS
# Stands for Kafka's tool of this name: asks the broker for the versions of its requests (ApiVersions, version 0).
import socket, struct, sys

host, _, port = sys.argv[sys.argv.index("--bootstrap-server") + 1].rpartition(":")
request = struct.pack(">hhih", 18, 0, 1, -1)
with socket.create_connection((host, int(port)), timeout=10) as broker:
    broker.sendall(struct.pack(">i", len(request)) + request)
    length, correlation, error = struct.unpack(">iih", broker.recv(10, socket.MSG_WAITALL))
sys.exit(error)
"""


@dataclass(frozen=True, slots=True)
class BaseImage:
    """Content of a substitute image.

    Attributes:
        files: text by container path; all are executable.
        folders: owner and group by path.
        accounts: additional lines of /etc/passwd.
        mounts: folders of this machine by container path, read-only.
    """

    variables: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    files: Mapping[str, str]
    folders: Mapping[str, tuple[int, int]]
    user: str = "0"
    workdir: str = "/"
    accounts: tuple[str, ...] = ()
    mounts: Mapping[str, Path] = field(default_factory=dict)


def base_image(reference: str) -> BaseImage:
    """Returns the substitute for a third-party image, by its name without tag and digest.

    Raises:
        KeyError: it has no substitute.
    """
    name = reference.partition("@")[0].rpartition(":")[0]
    images = {"apache/airflow": _airflow, "apache/kafka": _kafka, "python": _python, "postgres": _postgres}
    return images[name]()


def postgres_programs() -> Path | None:
    """Returns the folder of this machine's newest PostgreSQL programs; None without PostgreSQL."""
    on_path = shutil.which("postgres")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    if folders:
        return folders[-1]
    return Path(os.path.realpath(on_path)).parent if on_path else None


def _airflow() -> BaseImage:
    return BaseImage(
        variables={},
        entrypoint=(),
        command=(),
        files={"/entrypoint": _AIRFLOW_ENTRYPOINT, "/clean-logs": "#!/bin/sh\n"},
        folders={},
    )


def _python() -> BaseImage:
    return BaseImage(
        variables=_PYTHON_VARIABLES,
        entrypoint=(),
        command=("python3",),
        files={"/usr/bin/dumb-init": _DUMB_INIT.replace("@python@", os.path.realpath(sys.executable))},
        folders={"/home/airflow": AIRFLOW_USER},
        accounts=("airflow:x:50000:0:airflow:/home/airflow:/bin/bash",),
    )


def _kafka() -> BaseImage:
    python = os.path.realpath(sys.executable)
    return BaseImage(
        variables={"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"},
        entrypoint=(),
        command=("/etc/kafka/docker/run",),
        files={
            "/etc/kafka/docker/run": _KAFKA_ENTRYPOINT,
            "/opt/kafka/bin/kafka-broker-api-versions.sh": _KAFKA_VERSIONS.replace("@python@", python),
        },
        folders={"/opt/kafka/config": (1000, 1000), "/var/lib/kafka/data": (1000, 0)},
        user="appuser",
        accounts=("appuser:x:1000:1000:appuser:/nonexistent:/bin/bash",),
        mounts={"/opt/kafka/libs": ensure_broker_jars()},
    )


def _postgres() -> BaseImage:
    programs = postgres_programs()
    assert programs is not None, "PostgreSQL is not installed"
    return BaseImage(
        variables={"PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"},
        entrypoint=("/usr/local/bin/docker-entrypoint.sh",),
        command=("postgres",),
        files={"/usr/local/bin/docker-entrypoint.sh": _POSTGRES_ENTRYPOINT},
        folders={"/var/lib/postgresql/data": (0, 0)},
    )
