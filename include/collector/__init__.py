"""Takes events over HTTP, keeps them on disk before it answers, and takes them to a bucket, a stream or a topic."""
