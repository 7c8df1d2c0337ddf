"""Coordination and state of jobs on shared storage: control objects, paths, leases, stop flags, heartbeats, records."""
