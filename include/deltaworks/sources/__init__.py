"""Where events come from: objects, Kafka, Kinesis and Delta tables, each a folder."""
