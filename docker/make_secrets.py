"""Makes the secrets of the containers once: a file of variables for each group of services, in docker/secrets.

Needs nothing but Python, of any version since 3.9. Safe to repeat: what is there stays, what is missing is added.
The folder and its files are for the owner only, and git ignores them.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "secrets"
#: Where alerts go; it is not made, but asked for once.
WEBHOOK_FILE, WEBHOOK = "alerts.env", "DELTAWORKS_ALERTS_WEBHOOK"


def _database(values: Mapping[str, str]) -> str:
    return f"postgresql+psycopg2://airflow:{values['POSTGRES_PASSWORD']}@postgres/airflow"


def _login(values: Mapping[str, str]) -> str:
    login = {"login": "admin", "password": values["AIRFLOW_ADMIN_PASSWORD"]}
    return json.dumps({"conn_type": "http", "host": "http://airflow-apiserver:8080", **login})


def _write_keys(source: str) -> dict[str, SecretFactory]:
    """A write key of the collector, and the setting that replaces the demo's, which everybody knows."""
    key = f"DELTAWORKS_WRITE_KEY_{source.upper()}"

    def declared(values: Mapping[str, str]) -> str:
        return json.dumps([{"sha256": hashlib.sha256(values[key].encode()).hexdigest()}])

    return {
        key: lambda _: secrets.token_urlsafe(30),
        f"DELTAWORKS_SET__collectors__edge__sources__{source}__keys": declared,
    }


SecretFactory = Callable[[Mapping[str, str]], str]
#: File -> variable -> how its value is made from the values before it.
FILES: dict[str, dict[str, SecretFactory]] = {
    "postgres.env": {"POSTGRES_PASSWORD": lambda _: secrets.token_urlsafe(32)},
    "airflow.env": {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": _database,
        "AIRFLOW__CORE__FERNET_KEY": lambda _: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
    },
    "airflow-tokens.env": {"AIRFLOW__API_AUTH__JWT_SECRET": lambda _: secrets.token_urlsafe(48)},
    "airflow-logs.env": {"AIRFLOW__API__SECRET_KEY": lambda _: secrets.token_urlsafe(32)},
    "airflow-admin.env": {"AIRFLOW_ADMIN_PASSWORD": lambda _: secrets.token_urlsafe(18)},
    "airflow-login.env": {"AIRFLOW_CONN_DELTAWORKS_AIRFLOW": _login},
    "spark.env": {"DELTAWORKS_SPARK_SECRET": lambda _: secrets.token_urlsafe(48)},
    "lake.env": {
        "DELTAWORKS_LAKE_ACCESS_KEY": lambda _: f"lake{secrets.token_hex(8)}",
        "DELTAWORKS_LAKE_SECRET_KEY": lambda _: secrets.token_urlsafe(30),
    },
    "landing.env": {
        "DELTAWORKS_AWS_ACCESS_KEY": lambda _: f"landing{secrets.token_hex(8)}",
        "DELTAWORKS_AWS_SECRET_KEY": lambda _: secrets.token_urlsafe(30),
    },
    "write-keys.env": {
        **_write_keys("games"),
        **_write_keys("games_replay"),
        **_write_keys("mobile"),
        **_write_keys("mobile_replay"),
    },
}


def make_secrets(folder: Path) -> list[str]:
    """Add every variable that is missing, and return their names. Files of others' modes are made private."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    values: dict[str, str] = {}
    added: list[str] = []
    for name, makers in FILES.items():
        path = folder / name
        kept = _read(path)
        for variable, make in makers.items():
            values[variable] = kept.get(variable) or make(values)
            if kept.get(variable) != values[variable]:
                added.append(variable)
        _write_private(path, {**kept, **{variable: values[variable] for variable in makers}})
    # The services read it, whether anything is in it or not.
    _write_private(folder / WEBHOOK_FILE, _read(folder / WEBHOOK_FILE))
    return added


def prompt_for_webhook(folder: Path, *, ask: Callable[[str], str] | None) -> str:
    """Ask once for the webhook of alerts and store the answer. Returns a warning if alerts have no channel, else "".

    Args:
        ask: None without a terminal.
    """
    path = folder / WEBHOOK_FILE
    kept = _read(path)
    if WEBHOOK not in kept and ask is not None:
        url = ask("Where are alerts to go? The address of a webhook (https://...), empty for nowhere: ").strip()
        kept = {**kept, WEBHOOK: url}
        _write_private(path, kept)
    if kept.get(WEBHOOK):
        return ""
    return (
        f"No alert reaches a person: write {WEBHOOK}=https://... into {path}, or declare a channel under `alerts` of "
        "the environment"
    )


def _read(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))  # type: ignore[misc]


def _write_private(path: Path, values: Mapping[str, str]) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in values.items())
    fresh.replace(path)


def main(arguments: list[str] | None = None) -> int:
    """Make what is missing and say which variables that were; never a value."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    added = make_secrets(options.folder)
    sys.stdout.write(f"==> {options.folder}: {', '.join(added) if added else 'nothing was missing'}\n")
    warning = prompt_for_webhook(options.folder, ask=input if sys.stdin.isatty() and sys.stdout.isatty() else None)
    if warning:
        sys.stdout.write(f"==> {warning}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
