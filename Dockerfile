# One image for Airflow and for Spark's master and workers, and a target `local` with the servers of the local profile.
# The environment is the first part of the one that `make env` makes: the same Python, the same lock file, the same jars.

# Of Airflow's own image only its entry point and the script of its chart that trims logs: its packages would be a second
# Airflow beside the locked one.
FROM apache/airflow:3.3.2-python3.11 AS airflow


FROM python:3.11-slim-bookworm AS environment

# Debian keeps only the newest version of a package, so a pinned one could not be installed next month.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends curl dumb-init openjdk-17-jre-headless procps \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 50000 --gid 0 --create-home airflow \
    && mkdir -p /opt/deltaworks/lake /opt/deltaworks/landing /var/spool/deltaworks /opt/airflow/include /opt/airflow/spark_jobs /opt/airflow/auth /opt/airflow/keyring /opt/airflow/keyring-writers /opt/airflow/logs \
    && chown -R airflow:0 /opt/deltaworks /opt/airflow /var/spool/deltaworks \
    && chmod -R g=u /home/airflow /opt/airflow
COPY --from=airflow /entrypoint /clean-logs /

USER 50000
WORKDIR /opt/airflow
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

COPY --chown=airflow:0 requirements.lock /opt/deltaworks/locks/
RUN python -m venv /opt/deltaworks/venv \
    && /opt/deltaworks/venv/bin/python -m pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check --no-deps \
        --require-hashes --requirement /opt/deltaworks/locks/requirements.lock

ENV PATH="/opt/deltaworks/venv/bin:${PATH}" \
    PYTHONPATH=/opt/airflow/include \
    PYSPARK_PYTHON=/opt/deltaworks/venv/bin/python \
    SPARK_HOME=/opt/deltaworks/venv/lib/python3.11/site-packages/pyspark \
    DELTAWORKS_PROJECT=/opt/airflow \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW_USER_HOME_DIR=/home/airflow \
    AIRFLOW__CORE__LOAD_EXAMPLES=false \
    DUMB_INIT_SETSID=1 \
    LC_ALL=C.UTF-8 \
    TZ=UTC
ENTRYPOINT ["/usr/bin/dumb-init", "--", "/entrypoint"]


FROM environment AS jars

USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends maven openjdk-17-jdk-headless \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*
USER 50000

COPY --chown=airflow:0 include/deltaworks /opt/airflow/include/deltaworks
COPY --chown=airflow:0 include/jars/pom.xml include/jars/jars.lock /opt/airflow/include/jars/
COPY --chown=airflow:0 include/jars/src /opt/airflow/include/jars/src
COPY --chown=airflow:0 include/spark /opt/airflow/include/spark
RUN python -m deltaworks.build.jars


# Stands for AWS on this machine, and prepares that (docker-compose.yaml, profile `local`).
FROM environment AS local

COPY --chown=airflow:0 requirements-sandbox.lock /opt/deltaworks/locks/
RUN python -m pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check --no-deps \
    --require-hashes --requirement /opt/deltaworks/locks/requirements-sandbox.lock
COPY --chown=airflow:0 include /opt/airflow/include


FROM environment AS product

COPY --chown=airflow:0 --from=jars /opt/airflow/include/jars/target /opt/airflow/include/jars/target
COPY --chown=airflow:0 include/pyspark_deltaworks_cloud_files.py include/pyspark_deltaworks_kinesis.py include/pyspark_deltaworks_s3_sqs.py /opt/airflow/include/
COPY --chown=airflow:0 include/collector /opt/airflow/include/collector
COPY --chown=airflow:0 include/deltaworks /opt/airflow/include/deltaworks
COPY --chown=airflow:0 include/jars /opt/airflow/include/jars
COPY --chown=airflow:0 include/spark /opt/airflow/include/spark
COPY --chown=airflow:0 include/collectors /opt/airflow/include/collectors
COPY --chown=airflow:0 include/environments /opt/airflow/include/environments
COPY --chown=airflow:0 include/pipelines /opt/airflow/include/pipelines
COPY --chown=airflow:0 include/relays /opt/airflow/include/relays
COPY --chown=airflow:0 --from=jars /opt/airflow/include/deltaworks/console/static /opt/airflow/include/deltaworks/console/static
COPY --chown=airflow:0 plugins /opt/airflow/plugins
COPY --chown=airflow:0 spark_jobs /opt/airflow/spark_jobs
COPY --chown=airflow:0 dags /opt/airflow/dags
COPY --chown=airflow:0 docker/init.sh docker/spark.sh docker/s3proxy.sh /opt/deltaworks/
