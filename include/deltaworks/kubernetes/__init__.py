"""Generates Kubernetes objects: workloads, service accounts, settings and Spark pods."""
