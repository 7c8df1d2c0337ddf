"""Models that predict: trained on gold tables, judged on later days than they saw, published only where they add."""
