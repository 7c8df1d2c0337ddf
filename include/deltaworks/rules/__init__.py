"""Alert rules on query results: evaluated for every minute, with stored state, alerts and backtests."""
