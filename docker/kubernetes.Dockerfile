# The image of Dockerfile for Kubernetes: beside it the provider by which Airflow follows drivers in pods, and what starts
# these. `docker build --file docker/kubernetes.Dockerfile --build-arg IMAGE=deltaworks:0.1.0 --tag … .`
#
# An image of its own, since the client of Kubernetes takes every process of Airflow time and memory to load.

ARG IMAGE=deltaworks:0.1.0
FROM ${IMAGE}

COPY --chown=airflow:0 requirements-kubernetes.lock /opt/deltaworks/locks/
RUN python -m pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check --no-deps --require-hashes \
    --requirement /opt/deltaworks/locks/requirements-kubernetes.lock

COPY --chown=airflow:0 docker/spark_pod.sh /opt/deltaworks/
