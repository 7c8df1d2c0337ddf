"""Alert rules over query results: evaluated minute by minute, with stored state, alerts and backtests."""
