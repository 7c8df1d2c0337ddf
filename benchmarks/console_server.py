"""The server that the benchmark `console` asks, a process of its own that prints the address which opens the console.

As Airflow's API server has it: the console is mounted in an application that answers other things too, its version
among them, by a handler that is no coroutine and so takes a thread.
"""

from __future__ import annotations

import resource
import socket

import uvicorn
from fastapi import FastAPI

from deltaworks.console.standalone import SingleUser, build_standalone

WORD = "CONSOLE_LISTENING"


def application(reader: SingleUser) -> FastAPI:
    """The console, the version, and what the process has cost so far."""
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
    """Serve until the process is ended."""
    reader = SingleUser()
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"{WORD} http://127.0.0.1:{listener.getsockname()[1]}/open/{reader.login_key}", flush=True)
    uvicorn.Server(uvicorn.Config(application(reader), log_level="error", access_log=False)).run([listener])


if __name__ == "__main__":
    main()
