#!/usr/bin/env bash
# Prepares Airflow once: the login, the database, the pools; and refuses specs that are wrong. Safe to repeat.
set -euo pipefail

: "${AIRFLOW_ADMIN_PASSWORD:?is blank: make secrets writes docker/secrets/airflow-admin.env}"

python -m deltaworks.airflow.deployment

python - <<'PYTHON'
import json
import os
from pathlib import Path

path = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
path.unlink(missing_ok=True)
with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
    file.write(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}) + "\n")
PYTHON

airflow db migrate
# A pool for each class of job, as the environment's shares declare them.
pools="$(mktemp "${TMPDIR:-/tmp}/pools-XXXXXXXX.json")"
python -m deltaworks.cli pipelines pools > "${pools}"
airflow pools import "${pools}"
rm "${pools}"

# The Spark connection comes as AIRFLOW_CONN_SPARK_DEFAULT: a connection in a variable needs no row in the database.
python - <<'PYTHON'
import json
import os

connection = json.loads(os.environ["AIRFLOW_CONN_SPARK_DEFAULT"])
print(f"Spark runs at {connection['host']}")
PYTHON

python -m deltaworks.cli pipelines check

python - <<'PYTHON'
from deltaworks.control.health.processes import channel_warning
from deltaworks.specs.project import load_catalog

if warning := channel_warning(load_catalog(skip_invalid=True).environment.alerts):
    print(f"Warning: {warning}")
PYTHON
