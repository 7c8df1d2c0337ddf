"""Sends requests to Airflow's REST API with login, retries and error translation."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

import httpx2
from tenacity import RetryCallState, retry, retry_if_exception_type, wait_exponential_jitter

from deltaworks.airflow_client.login import AirflowLogin
from deltaworks.errors import ConfigError, DeltaworksError, TransientError

API = "/api/v2"
_RETRY_SECONDS = 30.0
#: A server that is reachable but too busy to answer is retried for longer than one that is down.
_BUSY_RETRY_SECONDS = 120.0
_UNAUTHORIZED = 401
_FORBIDDEN = 403
#: Airflow's error detail for a token signed with another secret. The status is the same as for a missing permission.
_INVALID_SIGNATURE = "Invalid JWT token"
MISSING = 404
_NO_CONTENT = 204
_CONFLICT = 409
_SERVER_ERROR = 500
_DAG = re.compile(r"^/dags/(?P<dag>[^/?]+)(?P<rest>/.*)?$")
#: Permissions required by a request, by method and last path segment. They have the names of FAB's permissions, which
#: are the most specific ones.
_PERMISSIONS = {
    ("PATCH", ""): "edit the DAG (FAB: `can edit on DAGs`)",
    ("POST", "dagRuns"): "trigger the DAG (FAB: `can create on DAG Runs` and `can edit on DAGs`)",
    ("POST", "clearTaskInstances"): "clear its tasks (FAB: `can edit on Task Instances` and `can edit on DAGs`)",
    ("POST", "events"): "create events of assets (FAB: `can create on Assets`)",
    ("PATCH", "dagRuns"): "edit its runs (FAB: `can edit on DAG Runs` and `can edit on DAGs`)",
}


class _Unavailable(Exception):
    """The server did not respond, or responded with a server error."""


class _Busy(_Unavailable):
    """The server is reachable but did not respond in time."""


def _is_retry_time_over(tries: RetryCallState) -> bool:
    if not tries.args[0].patient:
        return True
    busy = tries.outcome is not None and isinstance(tries.outcome.exception(), _Busy)
    return (tries.seconds_since_start or 0.0) >= (_BUSY_RETRY_SECONDS if busy else _RETRY_SECONDS)


class AirflowRequests:
    """A client that requests and renews its own tokens. Not thread-safe.

    Requests are retried for 30 s, and for two minutes while the server is reachable but too busy to respond; without
    `should_retry` they are sent once. Addresses with https:// use the proxy of the environment variables, if any; those
    with http:// are local and contacted directly.

    Args:
        transport: sends the requests in place of the network, such as to an application in the same process.
    """

    def __init__(
        self,
        login: AirflowLogin,
        *,
        timeout_seconds: float = 30.0,
        should_retry: bool = True,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.patient = should_retry
        self.login = login
        self._client = httpx2.Client(
            base_url=login.url,
            timeout=timeout_seconds,
            trust_env=login.url.startswith("https://"),
            verify=login.tls_verification(),
            transport=transport,
        )
        self._authorized = False
        if login.token:
            self._authorize(login.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _get(self, path: str, **params: Any) -> Any:
        return self._request("GET", path, params=params)

    def _request(
        self, method: str, path: str, *, missing_ok: bool = False, conflict_ok: bool = False, **options: Any
    ) -> Any:
        """Returns the response as JSON; None for one without content, and for an accepted 404 or 409.

        Raises:
            TransientError: AIRFLOW_UNREACHABLE.
            ConfigError: AIRFLOW_LOGIN_REFUSED, AIRFLOW_FORBIDDEN, AIRFLOW_DAG_UNKNOWN, AIRFLOW_REFUSED,
                AIRFLOW_UNTRUSTED.
        """
        try:
            response = self._send(method, path, **options)
        except _Unavailable as error:
            raise self._unreachable_error(error) from error
        if (missing_ok and response.status_code == MISSING) or (conflict_ok and response.status_code == _CONFLICT):
            return None
        if response.is_error:
            raise self._error_for(method, path, response)
        try:
            if response.is_redirect:
                raise ValueError(f"it redirects to {response.headers.get('location')}")
            return None if response.status_code == _NO_CONTENT else response.json()
        except ValueError as error:
            raise ConfigError(
                "AIRFLOW_REFUSED",
                f"The response to {method} {path} at {self.login.url} is not from Airflow's API: {error}.",
                hint=f"Check the address in {self.login.source}: it is that of Airflow's pages, without /api.",
            ) from error

    def _error_for(self, method: str, path: str, response: httpx2.Response) -> DeltaworksError:
        """Returns the error for an error response. Subclasses can add details."""
        return request_error(self.login, method, path, status=response.status_code, detail=_detail(response))

    @retry(
        retry=retry_if_exception_type(_Unavailable),
        wait=wait_exponential_jitter(initial=0.3, max=3),
        stop=_is_retry_time_over,
        reraise=True,
    )
    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            if not self._authorized:
                self._log_in()
            response = self._client.request(method, API + path, **options)
            if _is_token_rejected(response):
                # With a user name and password the client can get a new token.
                self._log_in()
                response = self._client.request(method, API + path, **options)
        except httpx2.ReadTimeout as error:
            raise _Busy(f"no answer to {method} {path} within {self._client.timeout.read:.0f} s") from error
        except httpx2.TransportError as error:
            self._raise_if_untrusted(error)
            raise _Unavailable(str(error) or type(error).__name__) from error
        if _is_token_rejected(response):
            raise self._login_error(f"the token it had just issued: {_detail(response)}")
        if response.status_code >= _SERVER_ERROR:
            raise _Unavailable(f"{response.status_code} {response.text[:200]}")
        return response

    def _log_in(self) -> None:
        if self.login.token:
            raise self._login_error("the token, which may have expired")
        credentials = {"username": self.login.username, "password": self.login.password}
        response = self._client.post("/auth/token", json=credentials)
        if response.status_code >= _SERVER_ERROR:
            raise _Unavailable(f"{response.status_code} {response.text[:200]}")
        if response.status_code == MISSING:
            raise self._login_error("the login: its auth manager issues no tokens at /auth/token")
        try:
            token = "" if response.is_error else response.json()["access_token"]
        except (ValueError, KeyError, TypeError):
            token = ""
        if not token:
            raise self._login_error(f"the login of {self.login.username}: {response.status_code}")
        self._authorize(token)

    def _authorize(self, token: str) -> None:
        self._client.headers["Authorization"] = f"Bearer {token}"
        self._authorized = True

    def _login_error(self, reason: str) -> ConfigError:
        return ConfigError(
            "AIRFLOW_LOGIN_REFUSED",
            f"Airflow at {self.login.url} refused {reason}.",
            hint="Log in to Airflow again."
            if self.login.is_session
            else f"Check {'token' if self.login.token else 'username and password'} in {self.login.source}, and the "
            "value of the variable it names; the password of the embedded stack is printed by `deltaworks status`.",
        )

    def _raise_if_untrusted(self, error: httpx2.TransportError) -> None:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise ConfigError(
                "AIRFLOW_UNTRUSTED",
                f"The certificate of {self.login.url} is not trusted: {error}.",
                hint=f"Name the PEM file of the authority that signed it as `ca` in {self.login.source}.",
            ) from error

    def _unreachable_error(self, error: Exception) -> TransientError:
        return TransientError(
            "AIRFLOW_UNREACHABLE",
            f"Airflow at {self.login.url} gives no usable response: {error}.",
            hint="`deltaworks status` shows the embedded stack; commands work without Airflow."
            if self.login.is_session
            else f"Check the address in {self.login.source} and the network; its API server may be restarting, which "
            "`deltaworks status` shows of the embedded stack.",
        )


def _is_token_rejected(response: httpx2.Response) -> bool:
    """Returns whether Airflow rejects the token: it has expired, or was signed with the secret before a restart."""
    unsigned = response.status_code == _FORBIDDEN and _detail(response) == _INVALID_SIGNATURE
    return unsigned or response.status_code == _UNAUTHORIZED


def _detail(response: httpx2.Response) -> str:
    """Returns the error detail of a response as text."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = response.text
    return str(detail)[:300]


def request_error(login: AirflowLogin, method: str, path: str, *, status: int, detail: str) -> ConfigError:
    """Returns the error for a forbidden or otherwise rejected request."""
    response = f"Airflow at {login.url} answered {status} to {method} {path}: {detail}."
    if status != _FORBIDDEN:
        return ConfigError(
            "AIRFLOW_REFUSED", response, hint=("Correct the value it names; the conf must match the DAG's params.")
        )
    login_name = f"{login.username} (from {login.source})" if login.username else f"The token of {login.source}"
    return ConfigError(
        "AIRFLOW_FORBIDDEN",
        f"{login_name} may not {required_permission(method, path)}. {response}",
        hint="Ask an administrator of that Airflow to give the login the role User (FAB: Op), or this permission on "
        "this DAG alone; docs/explanation/security.md has who may do what.",
    )


def required_permission(method: str, path: str) -> str:
    """Returns the permission that a rejected request requires, as a phrase."""
    match = _DAG.match(path)
    rest = ((match["rest"] or "") if match else path).strip("/").split("/")
    word = "dagRuns" if method == "PATCH" and rest[0] == "dagRuns" else rest[-1]
    return _PERMISSIONS.get((method, word), "read it" if method == "GET" else "do this")


def dag_id_in_path(path: str) -> str:
    """Returns the DAG id in a request path; empty if the path has none."""
    match = _DAG.match(path)
    return unquote(match["dag"]) if match else ""
