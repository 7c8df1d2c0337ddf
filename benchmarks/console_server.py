"""The server for the benchmark `console`: a process that prints the URL that opens the console.

Like Airflow's API server, it mounts the console in an application that also serves other endpoints. Its version
endpoint is a synchronous handler, which runs in a thread of the server's pool.
"""

from __future__ import annotations

import resource
import socket

import uvicorn
from fastapi import FastAPI

from deltaworks.console.standalone import SingleUser, build_standalone

READY_PREFIX = "CONSOLE_LISTENING"


def application(reader: SingleUser) -> FastAPI:
    """Returns the application: the console, the version endpoint, and the CPU seconds of the process."""
    outer = FastAPI()

    @outer.get("/version")
    def version() -> dict[str, str]:
        return {"version": "1"}

    @outer.get("/cpu")
    async def cpu() -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {"seconds": used.ru_utime + used.ru_stime}

    outer.mount("/", build_standalone(reader))
    return outer


def main() -> None:
    """Serves until the process is terminated."""
    reader = SingleUser()
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"{READY_PREFIX} http://127.0.0.1:{listener.getsockname()[1]}/open/{reader.login_key}", flush=True)
    uvicorn.Server(uvicorn.Config(application(reader), log_level="error", access_log=False)).run([listener])


if __name__ == "__main__":
    main()
