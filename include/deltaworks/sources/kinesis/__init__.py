"""Records of a Kinesis stream, each handed over once: positions are fixed beside the stream, rows are read in tasks."""
