-- Relative difference of a close from the previous one, adjusted for splits. Of repeated prices the newest counts.
WITH newest AS (
  SELECT ticker, event_date, arg_max(close, (_ingested_at, _seq, _position))::DOUBLE AS close
  FROM prices
  WHERE event_date >= $from::DATE - 14 AND event_date < $to
  GROUP BY ticker, event_date
), before AS (
  SELECT newest.*, lag(close) OVER shares AS close_before, lag(event_date) OVER shares AS date_before
  FROM newest WINDOW shares AS (PARTITION BY ticker ORDER BY event_date)
), based AS (
  SELECT before.*, coalesce((
    SELECT product(ratio::DOUBLE) FROM splits
    WHERE splits.ticker = before.ticker AND ex_date > date_before AND ex_date <= event_date), 1) AS ratio
  FROM before
)
SELECT event_date::TIMESTAMPTZ AS minute, ticker, abs(close * ratio / close_before - 1) AS value
FROM based
WHERE close_before > 0 AND event_date >= $from::DATE
