"""All Spark settings of Deltaworks, each with its reason. Plain data: needs no Spark.

Settings that the JVM needs at startup (class path, memory, logging) go on spark-submit's command line by `submit_conf`;
all others, including storage keys, are set on the session in the driver.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.share_conf import Launch

LOG_STORE_S3A = "io.deltaworks.storage.ConditionalPutLogStore"
LOG_STORE_FILE = "io.deltaworks.storage.CreateNewLogStore"
CHECKPOINT_FILE_MANAGER = "io.deltaworks.storage.ConditionalPutCheckpointFileManager"
S3A_LOG_STORE_KEY = "spark.delta.logStore.s3a.impl"

#: Settings of every session: name -> (value, reason)
SESSION_SETTINGS: dict[str, tuple[str, str]] = {
    "spark.sql.extensions": ("io.delta.sql.DeltaSparkSessionExtension", "Delta's SQL: OPTIMIZE, VACUUM, MERGE"),
    "spark.sql.catalog.spark_catalog": (
        "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "tables by path, delta.`s3a://...`, go through Delta",
    ),
    S3A_LOG_STORE_KEY: (LOG_STORE_S3A, "many writers on plain S3: a commit is a conditional put"),
    "spark.delta.logStore.file.impl": (LOG_STORE_FILE, "the same on local disk, by hard link"),
    "spark.sql.streaming.checkpointFileManagerClass": (
        CHECKPOINT_FILE_MANAGER,
        "two drivers on one checkpoint: the second detects the existing batch instead of replacing it",
    ),
    "spark.sql.session.timeZone": ("UTC", "event dates do not depend on the driver's location"),
    "spark.sql.ansi.enabled": ("true", "an overflow or a bad cast is an error, never a silent null"),
    "spark.sql.parquet.compression.codec": (
        "zstd",
        "as the files the ingest writes: with snappy, Spark's default, OPTIMIZE made a large table larger",
    ),
    "spark.sql.adaptive.enabled": ("true", "partition counts follow the data"),
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": ("false", "fewer, fuller output files"),
    "spark.sql.streaming.minBatchesToRetain": ("50", "offsets of earlier batches remain readable for repair"),
    "spark.sql.streaming.metricsEnabled": ("true", "the driver's metrics include rates and delays of queries"),
    "spark.metrics.conf.*.sink.prometheusServlet.class": (
        "org.apache.spark.metrics.sink.PrometheusServlet",
        "the driver's metrics for Prometheus at its UI's URL, without cost unless scraped",
    ),
    "spark.metrics.conf.*.sink.prometheusServlet.path": ("/metrics/prometheus", "as above"),
    "spark.sql.streaming.stopTimeout": ("60s", "a stop between batches either works or is reported"),
    "spark.sql.streaming.numRecentProgressUpdates": ("20", "progress goes to a table; memory need not keep it"),
    "spark.databricks.delta.snapshotPartitions": ("2", "our tables' logs are small: 50 tasks each cost seconds"),
    "spark.databricks.delta.retentionDurationCheck.enabled": ("true", "VACUUM below the retention is refused"),
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": (
        "false",
        "otherwise Delta 4.1 and later ignores RETAIN",
    ),
    "spark.databricks.delta.vacuum.logging.enabled": ("true", "VACUUM is in the table's history on S3 too"),
    "spark.databricks.delta.schema.autoMerge.enabled": ("false", "columns are only added explicitly"),
    "spark.sql.execution.arrow.pyspark.enabled": ("true", "rows cross to Python as Arrow"),
    "spark.sql.execution.pythonUDF.arrow.enabled": ("true", "as above"),
    "spark.python.worker.reuse": ("true", "a Python worker costs a second to start"),
    "spark.redaction.regex": (
        "(?i)secret|password|token|access[.]?key|passphrase|jaas|sasl",
        "storage keys never appear in the UI or logs",
    ),
    "spark.hadoop.fs.s3a.impl": ("org.apache.hadoop.fs.s3a.S3AFileSystem", "explicit"),
    "spark.hadoop.fs.s3a.create.checksum.algorithm": ("", "servers other than AWS support different checksums"),
    "spark.hadoop.fs.s3a.change.detection.mode": ("none", "Delta never rewrites an object in place"),
    "spark.hadoop.fs.s3a.directory.marker.retention": ("keep", "no deletes of parent markers on every write"),
    "spark.hadoop.fs.s3a.connection.maximum": ("64", "parallel commits and reads of one driver"),
    "spark.ui.showConsoleProgress": ("false", "task logs are not terminals"),
    "spark.sql.ui.retainedExecutions": ("50", "long-running jobs must not grow"),
    "spark.ui.retainedJobs": ("200", "as above"),
    "spark.ui.retainedStages": ("200", "as above"),
    "spark.ui.retainedTasks": ("2000", "as above"),
    "spark.scheduler.mode": ("FAIR", "a live table's query does not wait for a large ingest batch"),
}

#: Settings that `spark.protected: true` adds. A standalone master and its workers also need the first four.
AUTHENTICATION_SETTINGS: dict[str, tuple[str, str]] = {
    "spark.authenticate": ("true", "joining an application or a standalone cluster requires its secret"),
    "spark.network.crypto.enabled": ("true", "storage keys and rows are encrypted between processes"),
    "spark.network.crypto.cipher": ("AES/GCM/NoPadding", "authenticated: the default, CTR, does not detect changes"),
    "spark.network.crypto.saslFallback": ("false", "no fallback to a weaker handshake"),
    "spark.io.encryption.enabled": ("true", "spilled and shuffled data on local disks are encrypted"),
}
#: Prefixes of settings that YARN or Kubernetes needs to start a driver.
_SUBMIT_PREFIXES = ("spark.kubernetes.", "spark.yarn.")
#: Silences the JVM's warnings about a class archive that it ignores.
_QUIET_CDS_OPTIONS = "-Xlog:cds*=off -Xlog:class+path=off"
SPARK_SECRET_KEY = "spark.authenticate.secret"  # noqa: S105 - the name of a setting


def project_paths(root: Path) -> tuple[Path, Path]:
    """Returns the folder of jars and the log4j2 file of a checkout."""
    return root / "include" / "jars" / "target" / "jars", root / "include" / "spark" / "log4j2.properties"


def java_archive(root: Path) -> Path:
    """Returns the path of the class-data-sharing archive that `deltaworks.build.jars` builds."""
    return (root / "include" / "jars" / "target" / "classes.jsa").resolve()


def java_archive_manifest(root: Path) -> Path:
    """Returns the path of the file that records the inputs and the size in bytes of the class archive."""
    return java_archive(root).with_suffix(".json")


def java_archive_options(root: Path) -> str:
    """Returns the JVM options for the class-data-sharing archive; empty if there is no complete archive.

    The JVM checks class path and version and ignores a mismatching archive. A truncated archive crashes it, so the size
    is checked here.
    """
    archive = java_archive(root)
    try:
        if archive.stat().st_size != json.loads(java_archive_manifest(root).read_text())["bytes"]:
            return ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"-Xshare:auto -XX:SharedArchiveFile={archive} {_QUIET_CDS_OPTIONS}"


def submit_conf(environment: EnvironmentSpec, root: Path, launch: Launch | None = None) -> dict[str, str]:
    """Returns the settings for spark-submit, which the driver's JVM needs at startup. Contains no secrets, because it
    appears on a command line.

    Args:
        launch: launch settings of the job; by default Spark's own.
    """
    jars, log4j = project_paths(root)
    # WARN from the start: at INFO a batch writes 170 KB of log.
    java = f"-Dlog4j2.configurationFile=file:{log4j} -Duser.timezone=UTC {environment.spark.java_options}".rstrip()
    shared = dict(launch.conf) if launch is not None else {}
    return (
        _submit_only_conf(environment)
        | shared
        | protection_conf(environment)
        | {
            # One folder on both class paths: nothing is downloaded or copied per submit. The driver's path is resolved,
            # since the class archive is only valid for that exact path.
            "spark.driver.extraClassPath": f"{jars.resolve()}/*",
            "spark.executor.extraClassPath": f"{jars}/*",
            "spark.driver.extraJavaOptions": f"{java} {_gc_option(java)}{java_archive_options(root)}".rstrip(),
            "spark.executor.extraJavaOptions": java,
            "spark.redaction.regex": SESSION_SETTINGS["spark.redaction.regex"][0],
            "spark.driver.memory": launch.driver_memory if launch is not None else environment.spark.driver_memory,
        }
    )


def _gc_option(java: str) -> str:
    """Returns the driver's garbage collector option; empty if the environment names one, since the JVM rejects two."""
    return "" if re.search(r"-XX:\+Use\w+GC\b", java) else "-XX:+UseG1GC "


def _submit_only_conf(environment: EnvironmentSpec) -> dict[str, str]:
    """Returns the environment's settings that YARN or Kubernetes needs to start a driver, such as its image.

    Secrets and all other settings are set by the driver.
    """
    secret = re.compile(SESSION_SETTINGS["spark.redaction.regex"][0])
    return {
        name: value
        for name, value in environment.spark.conf.items()
        if name.startswith(_SUBMIT_PREFIXES) and not secret.search(name)
    }


def session_conf(environment: EnvironmentSpec) -> dict[str, str]:
    """Returns all session settings. They contain storage keys and must stay in the driver's memory."""
    conf = {name: value for name, (value, _) in SESSION_SETTINGS.items() if value}
    conf["spark.sql.shuffle.partitions"] = str(environment.spark.shuffle_partitions)
    conf.update(protection_conf(environment))
    if environment.spark.secret is not None:
        conf[SPARK_SECRET_KEY] = environment.spark.secret.resolve()
    conf.update(environment.lake.spark_conf())
    conf.update(environment.landing.spark_conf())
    conf.update(environment.spark.conf)
    return conf


def protection_conf(environment: EnvironmentSpec) -> dict[str, str]:
    """Returns the settings that authenticate and encrypt traffic between driver and executors; empty unless enabled."""
    if not environment.spark.protected:
        return {}
    return {name: value for name, (value, _) in AUTHENTICATION_SETTINGS.items()}


def check_master(environment: EnvironmentSpec, master: str) -> None:
    """Rejects a standalone master if the environment declares no protection and secret for it.

    Other masters generate a secret per application, or are one process.

    Raises:
        ConfigError: SPARK_UNPROTECTED.
    """
    if not master.startswith("spark://") or environment.spark.protected is False:
        return
    if environment.spark.protected and environment.spark.secret is not None:
        return
    missing = "secret" if environment.spark.protected else "protected"
    raise ConfigError(
        "SPARK_UNPROTECTED",
        f"include/environments/{environment.environment}.yaml: spark.{missing} is not set, and {master} is a "
        "standalone cluster: anyone with access to its ports could run code and read the lake's keys.",
    )


def check_log_store(conf: dict[str, str], *, shared: bool) -> None:
    """Rejects shared storage if the Delta log store does not exclude concurrent writers.

    Raises:
        ConfigError: LOG_STORE_UNSAFE.
    """
    log_store = conf.get(S3A_LOG_STORE_KEY)
    if shared and log_store != LOG_STORE_S3A:
        raise ConfigError(
            "LOG_STORE_UNSAFE",
            f"The lake is on S3 and {S3A_LOG_STORE_KEY} is {log_store or 'not set'}: Delta's default only "
            "excludes writers of one JVM, so two drivers would overwrite each other's commits and lose data.",
            hint=f"Set {S3A_LOG_STORE_KEY}={LOG_STORE_S3A} (Deltaworks' default), or remove the override.",
        )
