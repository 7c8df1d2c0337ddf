"""The format `s3-sqs`: objects announced through an SQS queue, as a streaming DataFrame."""
