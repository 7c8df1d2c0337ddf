"""The console in a process of its own: on this machine alone, for one person, who reads and starts nothing.

Whoever starts it is given an address that works once, as notebooks do. It turns into a cookie that scripts cannot read
and other sites do not send. Requests for other names than this machine's are refused, so that no page of a stranger can
have its own name mean this server.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from deltaworks.console.application import build_console
from deltaworks.console.cached_objects import CLIENT_TIMEOUTS, CachedObjects
from deltaworks.console.catalog_cache import CatalogCache
from deltaworks.console.console import Console
from deltaworks.console.page_builder import HEADERS
from deltaworks.console.host import Person, PendingApproval
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError

HOST: Final = "127.0.0.1"
_COOKIE = "deltaworks_console"
_NO_AIRFLOW = "The console runs alone, so it starts nothing: each page names the command."


class SingleUser:
    """The one person of a console that runs alone: whoever has the cookie. They read everything and start nothing."""

    def __init__(self) -> None:
        self._cookie = secrets.token_urlsafe(32)
        self._key: str | None = secrets.token_urlsafe(32)

    @property
    def login_key(self) -> str | None:
        """What opens the console once; None after that."""
        return self._key

    def redeem_key(self, key: str) -> str | None:
        """The cookie for a key, once; None for any other."""
        if self._key is None or not secrets.compare_digest(key.encode(), self._key.encode()):
            return None
        self._key = None
        return self._cookie

    @property
    def identify(self) -> Callable[..., Awaitable[Person]]:
        """Whoever has the cookie."""

        async def identify_user(request: Request) -> Person:
            cookie = request.cookies.get(_COOKIE, "")
            if not secrets.compare_digest(cookie.encode(), self._cookie.encode()):
                raise HTTPException(401, "Open the address that `deltaworks console` printed; it works once.")
            return Person(name="", may_read=lambda dag_id: True, may_start=lambda dag_id: False)

        return identify_user

    def login_address(self, request: Request) -> str | None:
        """None: there is no login, only the address that was printed."""
        return None


@dataclass(frozen=True, slots=True)
class UnavailableActions:
    """Without an Airflow nothing can be started."""

    async def start(
        self, request: Request, *, dag_id: str, run_id: str, conf: Mapping[str, Any], note: str = ""
    ) -> NoReturn:
        """Refused.

        Raises:
            ConfigError: AIRFLOW_CONNECTION_MISSING.
        """
        raise _no_airflow_error()

    async def run_state(self, request: Request, *, dag_id: str, run_id: str) -> NoReturn:
        """Refused.

        Raises:
            ConfigError: AIRFLOW_CONNECTION_MISSING.
        """
        raise _no_airflow_error()

    async def dag_params(self, request: Request, *, dag_id: str) -> NoReturn:
        """Refused.

        Raises:
            ConfigError: AIRFLOW_CONNECTION_MISSING.
        """
        raise _no_airflow_error()

    async def run_status(self, request: Request, *, dag_id: str, run_id: str, task_ids: Iterable[str]) -> NoReturn:
        """Refused.

        Raises:
            ConfigError: AIRFLOW_CONNECTION_MISSING.
        """
        raise _no_airflow_error()

    def unavailable_reason(self) -> str:
        """Why nothing can be started."""
        return _NO_AIRFLOW

    def paused_dags(self) -> frozenset[str] | None:
        """Nobody knows."""
        return None

    def pending_approvals(self, airflow: str | None) -> tuple[PendingApproval, ...]:
        """None: nobody is asked without an Airflow."""
        return ()

    def airflow_address(self, request: Request) -> str | None:
        """There is none."""
        return None


def _no_airflow_error() -> ConfigError:
    return ConfigError("AIRFLOW_CONNECTION_MISSING", _NO_AIRFLOW, hint="Run the command that the page names.")


def build_standalone(user: SingleUser, *, catalog: CatalogCache | None = None) -> FastAPI:
    """The console behind the address that works once, over the lake of the environment of this process."""
    catalog = catalog or CatalogCache()

    def open_lake() -> ObjectStore:
        return open_objects(catalog.current().environment.lake, timeouts=CLIENT_TIMEOUTS)

    console = Console(authenticator=user, actions=UnavailableActions(), records=CachedObjects(open_lake), catalog=catalog)
    app = FastAPI(title="Deltaworks", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    @app.get("/open/{key}")
    async def open_once(key: str) -> Response:
        cookie = user.redeem_key(key)
        if cookie is None:
            refused = "This address has been used, or is of another start. Start `deltaworks console` again.\n"
            return PlainTextResponse(refused, 403, headers=dict(HEADERS))
        answer = RedirectResponse("/", 303, headers={**HEADERS, "Cache-Control": "no-store"})
        answer.set_cookie(_COOKIE, cookie, httponly=True, samesite="strict")
        return answer

    app.mount("/", build_console(console))
    return app
