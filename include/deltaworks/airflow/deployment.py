"""Rejects unsafe Airflow configuration outside `local`: the development auth manager and weak secrets.

`plugins/airflow_local_settings.py` runs the check at the start of every Airflow process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from airflow.configuration import conf

from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.specs.weak_secrets import LOCAL, reject_weak

#: Environment variable. With `true` Airflow may start with its simple auth manager outside `local`.
ALLOW_VARIABLE = "DELTAWORKS_ALLOW_SIMPLE_AUTH"
_SIMPLE_AUTH_MANAGER = "SimpleAuthManager"
#: Airflow's secrets, and the commands that require them. If a secret is not set, each Airflow process generates one
#: that the others do not know. The key that encrypts connections is required by all commands: without it connections
#: are stored in clear text.
_REQUIRED_SECRETS: dict[tuple[str, str], frozenset[str] | None] = {
    ("core", "fernet_key"): None,
    ("api_auth", "jwt_secret"): frozenset({"api-server", "scheduler", "standalone"}),
    ("api", "secret_key"): frozenset({"api-server", "scheduler", "standalone", "triggerer"}),
}


def check_deployment(variables: Mapping[str, str] = os.environ, *, command: str | None = None) -> None:
    """Rejects unsafe Airflow configuration; does nothing in the environment `local`.

    A missing secret is rejected only in the processes that need it.

    Args:
        command: the Airflow command, such as `scheduler`; by default the first argument of this process.

    Raises:
        ConfigError: SIMPLE_AUTH_REFUSED or SECRET_WEAK, with the option and the variable that sets it.
    """
    environment = variables.get("DELTAWORKS_ENVIRONMENT", LOCAL)
    if environment == LOCAL:
        return
    _check_auth_manager(environment, allowed=variables.get(ALLOW_VARIABLE, "").strip().lower() == "true")
    if command is None:
        command = sys.argv[1] if len(sys.argv) > 1 else ""
    for option, variable, value in _configured_secrets(variables, command):
        reject_weak(value, location=option, variable=variable)


def _check_auth_manager(environment: str, *, allowed: bool) -> None:
    if not conf.get("core", "auth_manager", fallback="").endswith(_SIMPLE_AUTH_MANAGER):
        return
    all_admins = conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False)
    if all_admins or not allowed:
        raise ConfigError(
            "SIMPLE_AUTH_REFUSED",
            f"[core] auth_manager is Airflow's {_SIMPLE_AUTH_MANAGER} in the environment {environment!r}"
            + (
                ", and simple_auth_manager_all_admins makes every visitor an admin."
                if all_admins
                else ", which is meant for development."
            ),
            hint=f"Configure the auth manager of your users (docs/how-to/deploy.md), or set {ALLOW_VARIABLE}=true "
            "where one login is enough and simple_auth_manager_all_admins is off.",
        )


def _configured_secrets(variables: Mapping[str, str], command: str) -> Iterator[tuple[str, str, str]]:
    """Yields option, variable and value of each Airflow secret that this process needs or that is set."""
    for (section, key), needed_by in _REQUIRED_SECRETS.items():
        variable, value = f"AIRFLOW__{section.upper()}__{key.upper()}", conf.get(section, key, fallback="")
        if value or variable in variables or needed_by is None or command in needed_by:
            yield f"[{section}] {key}", variable, value
    database = urlsplit(conf.get("database", "sql_alchemy_conn", fallback=""))
    if database.hostname:
        yield "[database] sql_alchemy_conn", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", database.password or ""
    for variable in ("AIRFLOW_ADMIN_PASSWORD", "AIRFLOW_CONN_DELTAWORKS_AIRFLOW"):
        if variable in variables:
            yield "the login", variable, _password_of(variables[variable])


def _password_of(value: str) -> str:
    if not value.lstrip().startswith("{"):
        return urlsplit(value).password or "" if "://" in value else value
    try:
        return str(json.loads(value).get("password", ""))
    except ValueError:
        return ""


def main() -> int:
    """Runs the check once, for scripts that prepare Airflow."""
    try:
        check_deployment()
    except DeltaworksError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
