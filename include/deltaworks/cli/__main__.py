"""`python -m deltaworks.cli`, the same as the `deltaworks` command."""

from __future__ import annotations

from deltaworks.cli import main

main()
