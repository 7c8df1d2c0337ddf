"""Servers of the embedded stack: moto with corrections, s3proxy, a Kafka broker, and a fault-injecting proxy."""
