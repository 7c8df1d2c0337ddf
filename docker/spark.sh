#!/usr/bin/env bash
# Runs Spark's standalone master or a worker that speaks to nobody without the cluster's secret: `spark.sh master …`.
# The secret goes into a private file, so no process list shows it, and out of the environment that executors inherit.
set -euo pipefail

case "${1:-}" in
    master) class=org.apache.spark.deploy.master.Master ;;
    worker) class=org.apache.spark.deploy.worker.Worker ;;
    *) echo "spark.sh: say master or worker first" >&2; exit 2 ;;
esac
shift
: "${DELTAWORKS_SPARK_SECRET:?is blank: make secrets writes docker/secrets/spark.env}"

umask 077
properties="$(mktemp "${TMPDIR:-/tmp}/spark-XXXXXXXX.properties")"
cat > "${properties}" <<PROPERTIES
spark.authenticate=true
spark.authenticate.secret=${DELTAWORKS_SPARK_SECRET}
spark.network.crypto.enabled=true
spark.network.crypto.cipher=AES/GCM/NoPadding
spark.network.crypto.saslFallback=false
spark.master.rest.enabled=false
PROPERTIES
unset DELTAWORKS_SPARK_SECRET

exec spark-class "${class}" --properties-file "${properties}" "$@"
