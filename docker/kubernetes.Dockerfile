# The image of Dockerfile for Kubernetes: beside it the provider by which Airflow follows drivers in pods, and what starts
# these. `docker build --file docker/kubernetes.Dockerfile --build-arg IMAGE=deltaworks:0.1.0 --tag … .`
#
# An image of its own, since the client of Kubernetes takes every process of Airflow time and memory to load.

ARG IMAGE=deltaworks:0.1.0
FROM ${IMAGE}

COPY --chown=airflow:0 docker/kubernetes.lock /opt/deltaworks/locks/kubernetes.lock
RUN /opt/deltaworks/venv/bin/uv pip install --quiet --no-cache --no-deps --require-hashes \
    --python /opt/deltaworks/venv/bin/python --requirement /opt/deltaworks/locks/kubernetes.lock

COPY --chown=airflow:0 docker/spark_pod.sh /opt/deltaworks/
