"""Delta tables without a JVM: Arrow schemas, creation, guarded commits, changes and health."""
