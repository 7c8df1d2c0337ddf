#!/usr/bin/env bash
# Serves the lake of the profile `local` from its volume. The keys are read from a file, so no process list shows them.
set -euo pipefail

: "${DELTAWORKS_LAKE_ACCESS_KEY:?is blank: make secrets writes docker/secrets/lake.env}"
: "${DELTAWORKS_LAKE_SECRET_KEY:?is blank: make secrets writes docker/secrets/lake.env}"

umask 077
properties=/tmp/s3proxy.properties
cat > "${properties}" <<PROPERTIES
s3proxy.endpoint=http://0.0.0.0:9000
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity=${DELTAWORKS_LAKE_ACCESS_KEY}
s3proxy.credential=${DELTAWORKS_LAKE_SECRET_KEY}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir=/opt/deltaworks/lake
jclouds.identity=local
jclouds.credential=local
PROPERTIES

exec java -Xmx256m -jar /opt/airflow/include/jars/target/s3proxy/s3proxy-4.0.0-jar-with-dependencies.jar \
    --properties "${properties}"
