"""Locks container images by digest, audits locked packages for vulnerabilities, and packages the collector's Lambda."""
