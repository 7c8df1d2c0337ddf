"""The console as a standalone process on localhost: one user, read-only.

The user who starts it gets an address that works once, as with notebooks. It sets a cookie that scripts cannot read and
other sites do not send. Requests for other host names are rejected, which prevents DNS rebinding.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.console.application import build_console
from deltaworks.console.cached_objects import CLIENT_TIMEOUTS, CachedObjects, CatalogCache
from deltaworks.console.console import Console
from deltaworks.console.host import PendingApproval, Person
from deltaworks.console.page_builder import HEADERS, keep_read
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError

HOST: Final = "127.0.0.1"
_COOKIE = "deltaworks_console"
_NO_AIRFLOW = "The standalone console is read-only: each page shows the command instead."


class SingleUser:
    """The only user of a standalone console, identified by the cookie. May see everything and start nothing."""

    def __init__(self) -> None:
        self._cookie = secrets.token_urlsafe(32)
        self._key: str | None = secrets.token_urlsafe(32)

    @property
    def login_key(self) -> str | None:
        """The key that opens the console once; None after that."""
        return self._key

    def redeem_key(self, key: str) -> str | None:
        """Returns the cookie for the key, once; None for any other key."""
        if self._key is None or not secrets.compare_digest(key.encode(), self._key.encode()):
            return None
        self._key = None
        return self._cookie

    @property
    def identify(self) -> Callable[..., Awaitable[Person]]:
        """Identifies the user by the cookie."""

        async def identify_user(request: Request) -> Person:
            cookie = request.cookies.get(_COOKIE, "")
            if not secrets.compare_digest(cookie.encode(), self._cookie.encode()):
                raise HTTPException(401, "Open the address that `deltaworks console` printed; it works once.")
            return Person(name="", readable_dags=None, startable_dags=frozenset())

        return identify_user

    def login_address(self, request: Request) -> str | None:
        """Returns None: there is no login page, only the printed address."""
        return None


@dataclass(frozen=True, slots=True)
class UnavailableActions:
    """The actions of a console without Airflow, none of which can start."""

    def connect(self, request: Request) -> Callable[[], AirflowApi]:
        """Returns a function that always raises ConfigError: AIRFLOW_CONNECTION_MISSING."""
        return _raise_no_airflow

    def unavailable_reason(self) -> str:
        """Returns the reason for which no action can start: there is no Airflow."""
        return _NO_AIRFLOW

    def paused_dags(self) -> frozenset[str] | None:
        """Returns None: unknown."""
        return None

    def pending_approvals(self, airflow: str | None) -> tuple[PendingApproval, ...]:
        """Returns an empty list: without Airflow there are no approvals."""
        return ()

    def airflow_address(self, request: Request) -> str | None:
        """Returns None, since there is no Airflow."""
        return None


def _raise_no_airflow() -> NoReturn:
    raise ConfigError("AIRFLOW_CONNECTION_MISSING", _NO_AIRFLOW, hint="Run the command that the page shows.")


def build_standalone(user: SingleUser, *, catalog: CatalogCache | None = None) -> FastAPI:
    """Returns the console application for the lake of this process's environment, with an address that works once."""
    catalog = catalog or CatalogCache()

    def open_lake() -> ObjectStore:
        return open_objects(catalog.current().environment.lake, timeouts=CLIENT_TIMEOUTS)

    console = Console(
        authenticator=user, actions=UnavailableActions(), records=CachedObjects(open_lake), catalog=catalog
    )
    threading.Thread(target=keep_read, args=(console.builder,), name="console-read-ahead", daemon=True).start()
    app = FastAPI(title="Deltaworks", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    @app.get("/open/{key}")
    async def open_once(key: str) -> Response:
        cookie = user.redeem_key(key)
        if cookie is None:
            refused = "This address has been used or belongs to another start. Start `deltaworks console` again.\n"
            return PlainTextResponse(refused, 403, headers=dict(HEADERS))
        answer = RedirectResponse("/", 303, headers={**HEADERS, "Cache-Control": "no-store"})
        answer.set_cookie(_COOKIE, cookie, httponly=True, samesite="strict")
        return answer

    app.mount("/", build_console(console))
    return app
