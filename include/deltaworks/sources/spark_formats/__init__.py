"""Spark formats `s3-sqs`, `cloudFiles` and `kinesis`, for queries outside a pipeline."""
