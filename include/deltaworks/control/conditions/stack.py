"""Conditions of the installation, the embedded stack, demos, experiments and generators."""

from __future__ import annotations

from typing import Final

from deltaworks.control.conditions.definitions import Condition, conditions_of
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, DeltaworksError, TransientError

STACK: Final = (
    *conditions_of(
        ConfigError,
        Condition(
            "SPARK_CONNECTION_MISSING",
            "Airflow has no connection that says where Spark runs",
            "create `spark_default` as JSON",
        ),
        Condition(
            "SPARK_CONNECTION_INCOMPLETE",
            "the connection lacks its master, or what tracking in cluster mode needs",
            "write the connection as JSON with what is named",
        ),
        Condition(
            "AWS_CONNECTION_MISSING",
            "Airflow has no connection of the name that the environment gives as `aws_conn_id`",
            "create it with the keys as login and password, or correct the name",
        ),
        Condition(
            "AWS_CONNECTION_INVALID",
            "the connection that holds the keys of a storage has none, has keys of a role, or is for another place",
            "do what the message says; see explanation/security.md",
        ),
        Condition(
            "SIMPLE_AUTH_REFUSED",
            "outside `local`, Airflow runs with its auth manager for development",
            "configure another one, or set `DELTAWORKS_ALLOW_SIMPLE_AUTH=true` where one login is enough",
            runbook="how-to/deploy.md#airflow-behind-tls",
        ),
        Condition(
            "SPARK_UNPROTECTED",
            "the environment does not say how a standalone cluster is protected",
            "`spark.protected: true` and `spark.secret` in the environment; `false` where nobody else reaches it",
            runbook="how-to/deploy.md#another-spark-master",
        ),
        Condition(
            "DEPLOY_MODE_UNSUPPORTED",
            "cluster mode was asked of a standalone master",
            "remove `deploy-mode` from the connection",
        ),
        Condition(
            "PYTHON_UNSUPPORTED", "another Python than the one supported", "create the environment with that Python"
        ),
        Condition("PACKAGE_MISSING", "a package of the lock file is not installed", "`make env`"),
        Condition("JAVA_MISSING", "there is no Java", "install Java 17, or set JAVA_HOME"),
        Condition("JAVA_TOO_OLD", "the Java found is older than 17", "install Java 17, or set JAVA_HOME"),
        Condition("MAVEN_MISSING", "no Maven", "install Maven"),
        Condition("JARS_MISSING", "the class path has no Delta jar", "`make jars`"),
        Condition(
            "JARS_INCOMPLETE",
            "Maven succeeded, but jars are missing",
            "delete the folder that is named, then `make jars`",
        ),
        Condition(
            "IMAGE_NOT_LOCKED",
            "digests of images are recorded, and a reference does not carry its own",
            "`make images`, and review its difference",
        ),
        Condition(
            "JAR_NOT_LOCKED",
            "the lock of the jars has no digest of one that was resolved",
            "where a pom.xml changed on purpose: `make jarlock`, and review its difference",
        ),
        Condition(
            "PORT_INVALID",
            "a configured port is not a port number",
            "choose another with `DELTAWORKS_PORT_MOTO`, `DELTAWORKS_PORT_S3PROXY` or `DELTAWORKS_PORT_AIRFLOW`",
        ),
        Condition(
            "PORT_IN_USE",
            "a configured port is taken by another process",
            "choose another with `DELTAWORKS_PORT_MOTO`, `DELTAWORKS_PORT_S3PROXY` or `DELTAWORKS_PORT_AIRFLOW`",
        ),
        Condition("STACK_NOT_PREPARED", "the embedded stack was never started here", "`deltaworks up`"),
        Condition("STACK_RUNNING", "the demo would empty the lake of a running stack", "`deltaworks down` first"),
        Condition(
            "ACTION_FORM_STALE", "a form of the console was sent without the number it was shown with", "open it again"
        ),
        Condition(
            "ACTION_NOT_COUNTED",
            "what was to be done in earnest was not counted first, or its count did not end well",
            "open the form of the console again, and count",
        ),
        Condition(
            "METRICS_PORT_TAKEN",
            "another process has the port on which figures for Prometheus were to be served",
            "give a free one with `--port`",
        ),
        Condition(
            "CONSOLE_PORT_TAKEN",
            "another process has the port on which the console was to be served",
            "give a free one with `--port`",
        ),
        Condition(
            "CONSOLE_NOT_LOOPBACK",
            "`deltaworks console` was to be reached from other machines; it has no logins of its own",
            "`ssh -L 8990:127.0.0.1:8990` that machine, or the console in Airflow, behind its logins",
            runbook="how-to/use-the-console.md#alone",
        ),
        Condition(
            "AIRFLOW_CONNECTION_MISSING",
            "a command does not know where Airflow's API is",
            "declare `airflow` in the environment, start the stack, or set `AIRFLOW_CONN_DELTAWORKS_AIRFLOW`",
            runbook="how-to/deploy.md#commands-that-ask-airflow",
        ),
        Condition(
            "AIRFLOW_CONNECTION_INVALID",
            "what says where Airflow is cannot be used; the place and the key are named",
            "write it as the message says",
            runbook="how-to/deploy.md#commands-that-ask-airflow",
        ),
        Condition(
            "AIRFLOW_UNTRUSTED",
            "the certificate of Airflow's address is signed by nobody this machine trusts",
            "`ca` of the environment's `airflow`: the PEM file of the authority",
            runbook="how-to/deploy.md#commands-that-ask-airflow",
        ),
        Condition(
            "OPERATION_UNAVAILABLE",
            "`--in-airflow` of an operation that the pipeline or relay has no DAG for",
            "declare what it names",
        ),
        Condition(
            "AIRFLOW_DAG_PAUSED",
            "`--in-airflow` of an operation whose DAG is paused; nothing was triggered",
            "unpause the DAG, or run the command without `--in-airflow`",
        ),
        Condition(
            "OPTION_INVALID",
            "an option of an operation has a value it cannot take; flag and value are named",
            "write it as its help says",
        ),
        Condition("OPERATION_UNKNOWN", "a job or a DAG names no operation", "use the nearest one that is named"),
        Condition(
            "AIRFLOW_LOGIN_REFUSED",
            "Airflow refused the login, or a token whose time is over",
            "check what the message names; `deltaworks status` prints the password of the embedded stack",
        ),
        Condition(
            "AIRFLOW_FORBIDDEN",
            "the login may not do this; the permission it lacks is named",
            "have an administrator of that Airflow give it",
            runbook="explanation/security.md#who-may-do-what",
        ),
        Condition(
            "AIRFLOW_DAG_UNKNOWN",
            "that Airflow has no such DAG; the nearest one and import errors are named",
            "mend the import error, wait until the declaration is read, or check which Airflow is addressed",
        ),
        Condition(
            "AIRFLOW_REFUSED",
            "Airflow refused a request, or is none",
            "mend what the message names: address or options",
        ),
        Condition(
            "SQL_REFUSED", "a query of `deltaworks sql` is wrong", "`deltaworks sql` without a query lists the tables"
        ),
        Condition(
            "AS_OF_INVALID",
            "a query of `deltaworks sql` asks for something as of no version and no time, or for no table",
            "`PIPELINE.TABLE VERSION AS OF 12`, or `TIMESTAMP AS OF '2026-05-01 06:00'`, which is UTC",
        ),
        Condition(
            "EXPERIMENT_SIZES_INVALID",
            "sizes of an experiment that cannot be run",
            "more rows, or fewer days and batches a day",
        ),
        Condition(
            "GENERATE_DESTINATION_MISSING",
            "`deltaworks generate` has no destination",
            "give one of `--directory`, `--land` and `--post`; of `engagement`, `--directory` or `--send`; of "
            "`viewers` and `market`, `--directory` or `--land`",
        ),
        Condition(
            "GENERATOR_SETTING_INVALID",
            "a setting of the generator is out of range",
            "correct the option that is named",
        ),
        Condition("EVENTS_MISSING", "the file to replay does not exist", "give a file with one JSON object a line"),
        Condition("EVENTS_EMPTY", "the file to replay holds no event", "give a file with one JSON object a line"),
        Condition(
            "EVENTS_NOT_LINES", "the file to replay is not JSON lines", "give a file with one JSON object a line"
        ),
    ),
    *conditions_of(
        ContractError,
        Condition(
            "PACKAGE_VULNERABLE",
            "`make audit`: locked packages have known vulnerabilities, which are named",
            "raise their versions in requirements.txt, then `make lock`",
        ),
        Condition(
            "APPROVAL_REJECTED",
            "a run that was triggered by `--in-airflow` was counted, and a person rejected it; nothing was done",
            "read the count in the run that is named",
        ),
        Condition(
            "JAR_DIGEST_DIFFERS",
            "a resolved jar is not the one whose digest is recorded; no JVM has loaded it",
            "delete it in Maven's local repository, find out who serves it, `make jars`",
        ),
        Condition(
            "EXPERIMENT_FOLDER_TAKEN",
            "an experiment takes only a new folder, since it removes it in the end",
            "name another, or remove what was kept there",
        ),
        Condition(
            "EXPERIMENT_SIDES_DIFFER",
            "two sides of an experiment hold or answer different things, so that its times mean nothing",
            "run it again with `--keep`, and compare the tables",
        ),
        Condition(
            "STACK_STATE_BROKEN", "the embedded stack's state file cannot be read", "delete the file that is named"
        ),
    ),
    *conditions_of(
        ConcurrencyError,
        Condition("STACK_BUSY", "another command is starting or stopping the stack", "wait for it"),
        Condition(
            "STACK_LEFTOVERS", "processes of an earlier run are alive", "`deltaworks down`", default_retryable=False
        ),
    ),
    *conditions_of(
        TransientError,
        Condition(
            "RECORDS_NOT_SENT",
            "a broker did not take all records of the generator",
            "see whether it runs and has the topics, then send again",
        ),
        Condition(
            "BROKER_DOWN",
            "the embedded Kafka broker does not start",
            "see its output in the message; another process may have its port",
        ),
        Condition(
            "IMAGE_NOT_RESOLVED",
            "a registry gave no digest of an image; nothing was written",
            "`make images` where docker with buildx reaches the registry",
        ),
        Condition(
            "AUDIT_UNANSWERED",
            "`make audit`: the vulnerability service could not be asked, or knows nothing about some packages",
            "run it where PyPI itself is reached and not a mirror, or with `SERVICE=osv`",
        ),
        Condition(
            "JARS_NOT_RESOLVED", "Maven could not resolve or compile", "check its repositories, then `make jars`"
        ),
        Condition(
            "OBJECT_STORE_DOWN", "the embedded object store does not answer", "see whether another process has its port"
        ),
        Condition("AIRFLOW_UNREACHABLE", "Airflow's API gives no usable answer", "`deltaworks status`"),
        Condition(
            "DAG_RUN_TIMEOUT", "a DAG run did not end in time, or nothing of it moves any more", "look at its log"
        ),
        Condition(
            "APPROVAL_PENDING",
            "a run that was triggered by `--in-airflow` still waits for a person when the time to follow it is over",
            "have another person approve it on the page that is named",
        ),
        Condition("DAG_RUN_FAILED", "a DAG run failed", "look at its log"),
        Condition(
            "INGEST_TIMEOUT",
            "the demo's events are not all ingested, and nothing moves any more",
            "`make up`, then look at the stream DAGs",
        ),
        Condition(
            "EVENTS_NOT_DELIVERED",
            "what the demo posted was acknowledged by the collector, and its sink takes no more of it",
            "`deltaworks status` says what the sink does",
        ),
        Condition("LAKE_NOT_EMPTY", "the demo needs an empty lake", "`make demo` empties it", default_retryable=False),
    ),
    *conditions_of(
        DeltaworksError,
        Condition(
            "AIRFLOW_SETUP_FAILED", "`airflow db migrate` or a like command failed", "read the log that is named"
        ),
        Condition(
            "PROGRAM_FAILED",
            "a program of the embedded stack does not stay up",
            "read its log; then `deltaworks down` and `deltaworks up`",
        ),
        Condition("SUPERVISOR_FAILED", "the process supervisor did not start", "read the log that is named"),
        Condition("SUPERVISOR_REFUSED", "the process supervisor refused a command", "read the log that is named"),
    ),
)
