"""The servers of the stack: moto corrected where it differs from AWS, s3proxy, a Kafka broker, a fault proxy."""
