"""The formats `s3-sqs` and `cloudFiles`: objects announced through an SQS queue or listed, as a streaming DataFrame."""
