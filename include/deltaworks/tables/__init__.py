"""Delta tables without a JVM: their Arrow schemas, creation, guarded commits, changes and health."""
