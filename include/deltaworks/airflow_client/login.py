"""Resolves the address and login of Airflow's API from a variable, the environment's declaration, or a connection."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from deltaworks.errors import ConfigError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.environment import AirflowSpec, EnvironmentSpec, airflow_address

#: Airflow's environment variable for the connection. Tasks and commands read the same one.
CONNECTION_VARIABLE = "AIRFLOW_CONN_DELTAWORKS_AIRFLOW"
#: Names of the fields of an Airflow connection that hold its address and login.
CONNECTION_FIELDS = ("conn_type", "host", "port", "schema", "login", "password")
_EXAMPLE = '{"conn_type": "http", "host": "http://airflow:8080", "login": "...", "password": "..."}'


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowLogin:
    """An address with a user name and password, or a token.

    Args:
        source: where the login is configured, for error messages.
        ca: a PEM file of certificate authorities; empty for the system's.
        public_url: the address in links for people, or only its path; `url` if None.
        is_session: whether the token belongs to a person's session in the browser.
    """

    url: str
    source: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    verify: bool = True
    ca: str = ""
    public_url: str | None = None
    is_session: bool = False

    @property
    def link_base(self) -> str:
        """The prefix of links for people."""
        return self.url if self.public_url is None else self.public_url

    def tls_verification(self) -> ssl.SSLContext | bool:
        """Returns the value for httpx2's argument `verify`.

        Raises:
            ConfigError: AIRFLOW_CONNECTION_INVALID, the certificate file cannot be read.
        """
        if self.url.startswith("http://") or not self.verify:
            # No certificate is verified, and loading the system's certificates would take longer than a request.
            return False
        if not self.ca:
            return True
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise _invalid(self.source, f"ca: {self.ca} is no PEM file of certificates ({error})") from error


def airflow_login(environment: EnvironmentSpec, variables: Mapping[str, str] = os.environ) -> AirflowLogin:
    """Returns the login from the connection variable, which the embedded stack and containers set, or from the
    environment.

    Raises:
        ConfigError: AIRFLOW_CONNECTION_MISSING if neither is configured; AIRFLOW_CONNECTION_INVALID,
            REFERENCE_UNRESOLVED.
    """
    if variables.get(CONNECTION_VARIABLE):
        return login_from_variable(variables[CONNECTION_VARIABLE])
    if environment.airflow is not None:
        return declared_login(environment.airflow, environment.environment)
    raise ConfigError(
        "AIRFLOW_CONNECTION_MISSING",
        f"Airflow's API is not configured: include/environments/{environment.environment}.yaml has no "
        f"`airflow`, and {CONNECTION_VARIABLE} is not set.",
        hint="Declare `airflow: {url: https://..., username: ..., password: env:NAME}` there, or start the embedded "
        "stack with `deltaworks up`.",
    )


def declared_login(spec: AirflowSpec, environment: str) -> AirflowLogin:
    """Returns the login that an environment declares, with references resolved.

    Raises:
        ConfigError: REFERENCE_UNRESOLVED; AIRFLOW_CONNECTION_INVALID, a variable contains no address.
    """
    source = f"airflow in include/environments/{environment}.yaml"
    return AirflowLogin(
        url=_address(resolve_text(spec.url), source, "url"),
        source=source,
        username=resolve_text(spec.username) if spec.username is not None else "",
        password=spec.password.resolve() if spec.password is not None else "",
        token=spec.token.resolve() if spec.token is not None else "",
        verify=spec.verify,
        ca=resolve_text(spec.ca) if spec.ca is not None else "",
        public_url=_address(resolve_text(spec.public_url), source, "public_url")
        if spec.public_url is not None
        else None,
    )


def login_from_variable(value: str) -> AirflowLogin:
    """Returns the login of a connection variable: JSON or Airflow's URI format.

    Raises:
        ConfigError: AIRFLOW_CONNECTION_INVALID.
    """
    try:
        fields = json.loads(value) if value.lstrip().startswith("{") else _fields_from_uri(value)
        extra = fields.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
    except ValueError as error:
        raise _invalid(CONNECTION_VARIABLE, f"it is neither JSON nor a URI ({error})") from error
    fields = {name: fields.get(name) for name in CONNECTION_FIELDS}
    return login_from_connection(fields, extra, source=CONNECTION_VARIABLE)


def login_from_connection(fields: Mapping[str, Any], extra: Mapping[str, Any], *, source: str) -> AirflowLogin:
    """Returns the login of an Airflow connection of type `http`.

    Args:
        fields: its `host`, `port`, `schema`, `login`, `password` and `conn_type`.
        extra: may contain `token`, `verify`, `ca` and `public_url`.

    Raises:
        ConfigError: AIRFLOW_CONNECTION_INVALID.
    """
    host, extra = str(fields.get("host") or ""), {name: value for name, value in extra.items() if value is not None}
    if host and "://" not in host:
        scheme = fields.get("schema") or ("https" if fields.get("conn_type") == "https" else "http")
        host = f"{scheme}://{host}"
    if fields.get("port") and urlsplit(host).port is None:
        host = f"{host.rstrip('/')}:{fields['port']}"
    login, password = (str(fields.get(name) or "") for name in ("login", "password"))
    token = str(extra.get("token", ""))
    if not host or not (token or (login and password)):
        raise _invalid(source, "it needs host, login and password")
    return AirflowLogin(
        url=_address(host, source, "host"),
        source=source,
        username=login,
        password=password,
        token=token,
        verify=str(extra.get("verify", True)).lower() != "false",
        ca=str(extra.get("ca", "")),
        public_url=str(extra.get("public_url", "")).rstrip("/") or None,
    )


def _fields_from_uri(value: str) -> dict[str, Any]:
    parts = urlsplit(value)
    if not parts.scheme or not parts.netloc:
        raise ValueError("no scheme and host")
    return {
        "conn_type": parts.scheme,
        "host": unquote(parts.hostname or ""),
        "port": parts.port,
        "schema": unquote(parts.path.strip("/")),
        "login": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "extra": dict(parse_qsl(parts.query)),
    }


def _address(url: str, source: str, key: str) -> str:
    try:
        return airflow_address(url)
    except ValueError as error:
        raise _invalid(source, f"{key}: {error}") from error


def _invalid(source: str, problem: str) -> ConfigError:
    hint = f"Write it as JSON: {_EXAMPLE}." if source == CONNECTION_VARIABLE else "Correct it there."
    return ConfigError("AIRFLOW_CONNECTION_INVALID", f"{source}: {problem}.", hint=hint)
