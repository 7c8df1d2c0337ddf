"""What runs on Kubernetes, as the API's objects: workloads, accounts, settings, and the pods of Spark."""
