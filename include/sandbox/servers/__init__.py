"""The servers of the stack: moto put right where it differs from AWS, s3proxy, a Kafka broker, a fault proxy."""
