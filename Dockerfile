# One image for Airflow, for Spark's master and workers, and for the servers of the local profile.
# The environment is the one `make env` makes: the same Python, the same lock file, the same jars.

FROM apache/airflow:3.3.2-python3.11 AS environment

USER 0
# Debian keeps only the newest version of a package, so a pinned one could not be installed next month.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /opt/deltaworks/lake /var/spool/deltaworks /opt/airflow/include /opt/airflow/spark_jobs /opt/airflow/auth /opt/airflow/keyring /opt/airflow/logs \
    && chown -R airflow:0 /opt/deltaworks /opt/airflow /var/spool/deltaworks

USER 50000
WORKDIR /opt/airflow
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

COPY --chown=airflow:0 requirements.lock requirements-uv.lock /opt/deltaworks/locks/
COPY --chown=airflow:0 docker/requirements.lock /opt/deltaworks/locks/docker.lock
RUN python -m venv /opt/deltaworks/venv \
    && /opt/deltaworks/venv/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-deps \
        --require-hashes --requirement /opt/deltaworks/locks/requirements-uv.lock \
    && /opt/deltaworks/venv/bin/uv pip sync --quiet --no-cache --require-hashes \
        --python /opt/deltaworks/venv/bin/python \
        /opt/deltaworks/locks/requirements.lock /opt/deltaworks/locks/docker.lock

ENV PATH="/opt/deltaworks/venv/bin:${PATH}" \
    PYTHONPATH=/opt/airflow/include \
    PYSPARK_PYTHON=/opt/deltaworks/venv/bin/python \
    SPARK_HOME=/opt/deltaworks/venv/lib/python3.11/site-packages/pyspark \
    DELTAWORKS_PROJECT=/opt/airflow \
    TZ=UTC


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


FROM environment

COPY --chown=airflow:0 --from=jars /opt/airflow/include/jars/target /opt/airflow/include/jars/target
COPY --chown=airflow:0 include /opt/airflow/include
COPY --chown=airflow:0 --from=jars /opt/airflow/include/deltaworks/console/static /opt/airflow/include/deltaworks/console/static
COPY --chown=airflow:0 plugins /opt/airflow/plugins
COPY --chown=airflow:0 spark_jobs /opt/airflow/spark_jobs
COPY --chown=airflow:0 dags /opt/airflow/dags
COPY --chown=airflow:0 docker/init.sh docker/spark.sh docker/s3proxy.sh docker/landing_init.py /opt/deltaworks/
