"""The format `s3-sqs`: objects announced through a queue, as a streaming DataFrame."""
