"""Conditions of the installation, the embedded stack, demos, experiments and generators."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, DeltaworksError, TransientError

STACK: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "KUBERNETES_UNDECLARED",
            "the environment declares no cluster for manifests",
            "declare `kubernetes`, or use another environment",
            runbook="how-to/deploy.md#kubernetes",
        ),
        Condition(
            "KUBERNETES_SETTINGS_INVALID",
            "the settings file has a line that is not `NAME=value`, or a secret",
            "fix the named line; move secrets to the Secret",
            runbook="how-to/deploy.md#kubernetes",
        ),
        Condition(
            "SPARK_CONNECTION_MISSING",
            "Airflow has no Spark connection",
            "create `spark_default` as JSON",
        ),
        Condition(
            "SPARK_CONNECTION_INCOMPLETE",
            "the connection lacks its master, or the tracking settings of cluster mode",
            "write it as JSON with the named settings",
        ),
        Condition(
            "AWS_CONNECTION_MISSING",
            "Airflow has no connection `aws_conn_id`",
            "create it with the keys as login and password, or correct the name",
        ),
        Condition(
            "AWS_CONNECTION_INVALID",
            "a storage's connection has no keys, a role's keys, or another endpoint",
            "follow the message; see explanation/security.md",
        ),
        Condition(
            "SIMPLE_AUTH_REFUSED",
            "Airflow uses its development auth manager outside `local`",
            "configure another one, or set `DELTAWORKS_ALLOW_SIMPLE_AUTH=true` if one login is enough",
            runbook="how-to/deploy.md#airflow-behind-tls",
        ),
        Condition(
            "SPARK_UNPROTECTED",
            "the protection of a standalone cluster is undeclared",
            "set `spark.protected: true` and `spark.secret`; `false` if no one else can reach it",
            runbook="how-to/deploy.md#another-spark-master",
        ),
        Condition(
            "DEPLOY_MODE_UNSUPPORTED",
            "a standalone master does not support cluster mode",
            "remove `deploy-mode` from the connection",
        ),
        Condition(
            "PYTHON_UNSUPPORTED",
            "this Python version is not supported",
            "create the environment with a supported version",
        ),
        Condition("PACKAGE_MISSING", "a package of the lock file is not installed", "`make env`"),
        Condition("JAVA_MISSING", "Java is not installed", "install Java 17, or set JAVA_HOME"),
        Condition("JAVA_TOO_OLD", "the installed Java is older than 17", "install Java 17, or set JAVA_HOME"),
        Condition("MAVEN_MISSING", "Maven is not installed", "install Maven"),
        Condition("JARS_MISSING", "the class path has no Delta jar", "`make jars`"),
        Condition(
            "JARS_INCOMPLETE",
            "Maven succeeded, but jars are missing",
            "delete the named folder, then run `make jars`",
        ),
        Condition(
            "IMAGE_NOT_LOCKED",
            "an image reference lacks its recorded digest",
            "run `make images`, and review its changes",
        ),
        Condition(
            "JAR_NOT_LOCKED",
            "the lock file has no digest of a resolved jar",
            "if a pom.xml changed: `make jarlock`, and review its changes",
        ),
        Condition(
            "PORT_INVALID",
            "a configured port is not a port number",
            "choose another with `DELTAWORKS_PORT_MOTO`, `DELTAWORKS_PORT_S3PROXY` or `DELTAWORKS_PORT_AIRFLOW`",
        ),
        Condition(
            "PORT_IN_USE",
            "another process uses a configured port",
            "choose another with `DELTAWORKS_PORT_MOTO`, `DELTAWORKS_PORT_S3PROXY` or `DELTAWORKS_PORT_AIRFLOW`",
        ),
        Condition("STACK_NOT_PREPARED", "the embedded stack was never started here", "`deltaworks up`"),
        Condition("STACK_RUNNING", "the demo would delete the lake of a running stack", "`deltaworks down` first"),
        Condition("ACTION_FORM_STALE", "a console form was sent without its form number", "open it again"),
        Condition(
            "ACTION_NOT_COUNTED",
            "a console action had no successful dry run",
            "open the form again, and run the dry run first",
        ),
        Condition(
            "METRICS_PORT_TAKEN",
            "another process uses the metrics port",
            "choose a free one with `--port`",
        ),
        Condition(
            "CONSOLE_PORT_TAKEN",
            "another process uses the console's port",
            "choose a free one with `--port`",
        ),
        Condition(
            "CONSOLE_NOT_LOOPBACK",
            "`deltaworks console` serves this machine only",
            "use `ssh -L 8990:127.0.0.1:8990`, or the console in Airflow",
            runbook="how-to/use-the-console.md#without-airflow",
        ),
        Condition(
            "AIRFLOW_CONNECTION_MISSING",
            "the address of Airflow's API is unknown",
            "declare `airflow`, start the stack, or set `AIRFLOW_CONN_DELTAWORKS_AIRFLOW`",
            runbook="how-to/deploy.md#commands-that-ask-airflow",
        ),
        Condition(
            "AIRFLOW_CONNECTION_INVALID",
            "a setting of the connection to Airflow is invalid",
            "write it as the message describes",
            runbook="how-to/deploy.md#commands-that-ask-airflow",
        ),
        Condition(
            "AIRFLOW_UNTRUSTED",
            "the authority of Airflow's certificate is not trusted",
            "set `ca` of the environment's `airflow` to the authority's PEM file",
            runbook="how-to/deploy.md#commands-that-ask-airflow",
        ),
        Condition(
            "OPERATION_UNAVAILABLE",
            "there is no DAG for this operation with `--in-airflow`",
            "declare the named section",
        ),
        Condition(
            "AIRFLOW_DAG_PAUSED",
            "the DAG of an `--in-airflow` operation is paused; nothing was triggered",
            "unpause it, or run without `--in-airflow`",
        ),
        Condition(
            "OPTION_INVALID",
            "an option of an operation has an invalid value",
            "write the named flag as its help describes",
        ),
        Condition("OPERATION_UNKNOWN", "a job or DAG names an unknown operation", "use the suggested name"),
        Condition(
            "AIRFLOW_LOGIN_REFUSED",
            "Airflow rejected the login, or an expired token",
            "check the named setting; `deltaworks status` prints the embedded stack's password",
        ),
        Condition(
            "AIRFLOW_FORBIDDEN",
            "the login lacks the named permission",
            "ask an administrator for it",
            runbook="explanation/security.md#who-may-do-what",
        ),
        Condition(
            "AIRFLOW_DAG_UNKNOWN",
            "Airflow has no such DAG; the closest name and import errors are given",
            "fix the import error, wait for parsing, or check Airflow's address",
        ),
        Condition(
            "AIRFLOW_REFUSED",
            "Airflow rejected a request, or the server is not Airflow",
            "fix the named address or options",
        ),
        Condition(
            "SQL_REFUSED", "a query of `deltaworks sql` is invalid", "`deltaworks sql` without a query lists the tables"
        ),
        Condition(
            "AS_OF_INVALID",
            "a time-travel query names an invalid version, time or table",
            "`PIPELINE.TABLE VERSION AS OF 12`, or `TIMESTAMP AS OF '2026-05-01 06:00'` in UTC",
        ),
        Condition(
            "EXPERIMENT_SIZES_INVALID",
            "the sizes of an experiment cannot be run",
            "use more rows, or fewer days and batches per day",
        ),
        Condition(
            "GENERATE_DESTINATION_MISSING",
            "`deltaworks generate` has no destination",
            "pass `--directory`, `--land` or `--post` (`engagement`: `--directory`, `--send`; `viewers`, "
            "`market`: `--directory`, `--land`)",
        ),
        Condition(
            "GENERATOR_SETTING_INVALID",
            "a setting of the generator is out of range",
            "correct the named option",
        ),
        Condition("EVENTS_MISSING", "the file to replay does not exist", "pass a file with one JSON object per line"),
        Condition("EVENTS_EMPTY", "the file to replay has no events", "pass a file with one JSON object per line"),
        Condition(
            "EVENTS_NOT_LINES", "the file to replay is not JSON lines", "pass a file with one JSON object per line"
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "PACKAGE_VULNERABLE",
            "`make audit`: the named locked packages have known vulnerabilities",
            "raise their versions in requirements.txt, then `make lock`",
        ),
        Condition(
            "APPROVAL_REJECTED",
            "a person rejected an `--in-airflow` run; nothing was done",
            "check the counts in the named run",
        ),
        Condition(
            "JAR_DIGEST_DIFFERS",
            "a resolved jar does not match its recorded digest; no JVM has loaded it",
            "delete it in Maven's local repository, find out who serves it, `make jars`",
        ),
        Condition(
            "EXPERIMENT_FOLDER_TAKEN",
            "an experiment needs a new folder, which it deletes at the end",
            "use another folder, or delete it",
        ),
        Condition(
            "EXPERIMENT_RESULTS_DIFFER",
            "two sides of an experiment have different results, so their times are not comparable",
            "run it again with `--keep`, and compare the tables",
        ),
        Condition("STACK_STATE_BROKEN", "the state file of the embedded stack cannot be read", "delete the named file"),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition("STACK_BUSY", "another command is starting or stopping the stack", "wait for it"),
        Condition(
            "STACK_LEFTOVERS",
            "processes of an earlier run are still running",
            "`deltaworks down`",
            default_retryable=False,
        ),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "RECORDS_NOT_SENT",
            "a broker did not accept all records of the generator",
            "check that it runs and has the topics, then send again",
        ),
        Condition(
            "BROKER_DOWN",
            "the embedded Kafka broker does not start",
            "read its output in the message; another process may use its port",
        ),
        Condition(
            "IMAGE_NOT_RESOLVED",
            "a registry returned no digest of an image; nothing was written",
            "run `make images` where docker with buildx can reach the registry",
        ),
        Condition(
            "AUDIT_UNANSWERED",
            "`make audit`: the vulnerability service did not answer, or does not know some packages",
            "run it with PyPI instead of a mirror, or `SERVICE=osv`",
        ),
        Condition(
            "JARS_NOT_RESOLVED", "Maven could not resolve or compile", "check its repositories, then `make jars`"
        ),
        Condition(
            "OBJECT_STORE_DOWN",
            "the embedded object store does not answer",
            "check whether another process uses its port",
        ),
        Condition("AIRFLOW_UNREACHABLE", "Airflow's API returns no usable response", "`deltaworks status`"),
        Condition("DAG_RUN_TIMEOUT", "a DAG run did not end in time, or makes no progress", "read its log"),
        Condition(
            "APPROVAL_PENDING",
            "an `--in-airflow` run still waits for approval",
            "ask another person to approve it on the named page",
        ),
        Condition("DAG_RUN_FAILED", "a DAG run failed", "read its log"),
        Condition(
            "INGEST_TIMEOUT",
            "the demo's ingestion makes no progress",
            "`make up`, then check the stream DAGs",
        ),
        Condition(
            "EVENTS_NOT_DELIVERED",
            "the sink of the demo's collector rejects events",
            "`deltaworks status` shows the state of the sink",
        ),
        Condition("LAKE_NOT_EMPTY", "the demo needs an empty lake", "`make demo` empties it", default_retryable=False),
    ),
    *conditions_of(
        DeltaworksError,
        Condition("AIRFLOW_SETUP_FAILED", "`airflow db migrate` or a similar command failed", "read the named log"),
        Condition(
            "PROGRAM_FAILED",
            "a program of the embedded stack keeps ending",
            "read its log; then `deltaworks down` and `deltaworks up`",
        ),
        Condition("SUPERVISOR_FAILED", "the process supervisor did not start", "read the named log"),
        Condition("SUPERVISOR_REFUSED", "the process supervisor rejected a command", "read the named log"),
    ),
)
