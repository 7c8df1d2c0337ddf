"""What a release is built from: container images by digest, and the audit of locked packages for vulnerabilities."""
