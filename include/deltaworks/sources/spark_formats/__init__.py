"""Spark formats `s3-sqs` and `kinesis`, for queries outside a pipeline."""
