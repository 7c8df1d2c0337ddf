"""Takes events over HTTP and puts them into a Kinesis stream: one function, as a Lambda handler or a local endpoint."""
