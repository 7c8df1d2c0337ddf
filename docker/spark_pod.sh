#!/usr/bin/env bash
# Starts a driver or an executor in a pod, as Spark on Kubernetes asks for it: by its first argument and by variables.
set -euo pipefail

role="${1:-}"
shift || true
case "${role}" in
    driver)
        : "${SPARK_DRIVER_BIND_ADDRESS:?is set by spark-submit: this is no pod of Spark}"
        exec spark-submit \
            --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS}" \
            --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=${SPARK_DRIVER_BIND_ADDRESS}" \
            --deploy-mode client "$@"
        ;;
    executor)
        : "${SPARK_EXECUTOR_ID:?is set by the driver: this is no pod of Spark}"
        # Options of the JVM come one a variable, SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on.
        options=()
        number=0
        while variable="SPARK_JAVA_OPT_${number}" && [[ -n "${!variable+set}" ]]; do
            options+=("${!variable}")
            number=$((number + 1))
        done
        exec java "${options[@]}" "-Xms${SPARK_EXECUTOR_MEMORY}" "-Xmx${SPARK_EXECUTOR_MEMORY}" \
            -cp "${SPARK_CONF_DIR:-}:${SPARK_CLASSPATH:-}:${SPARK_HOME}/jars/*" \
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "${SPARK_DRIVER_URL}" \
            --executor-id "${SPARK_EXECUTOR_ID}" \
            --cores "${SPARK_EXECUTOR_CORES}" \
            --app-id "${SPARK_APPLICATION_ID}" \
            --hostname "${SPARK_EXECUTOR_POD_IP}" \
            --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID}" \
            --podName "${SPARK_EXECUTOR_POD_NAME}"
        ;;
    *)
        echo "spark_pod.sh: say driver or executor first" >&2
        exit 2
        ;;
esac
