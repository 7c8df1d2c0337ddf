-- Relative difference of a close from the previous one, adjusted for splits, in the minute in which it arrived. Closes that
-- arrive more than five days after their session are history. Of repeated prices the newest so far counts.
WITH arrived AS (
  SELECT ticker, event_date, close::DOUBLE AS close, _ingested_at, _seq, _position
  FROM prices
  WHERE event_date >= $from::DATE - 6 AND _ingested_at >= $from AND _ingested_at < $to
    AND event_date >= _ingested_at::DATE - 5
), before AS (
  SELECT arrived.*, arg_max(earlier.close, (earlier.event_date, earlier._ingested_at, earlier._seq, earlier._position))::DOUBLE
      AS close_before,
    max(earlier.event_date) AS date_before
  FROM arrived JOIN prices AS earlier
    ON earlier.ticker = arrived.ticker AND earlier.event_date < arrived.event_date
    AND earlier.event_date >= arrived.event_date - 14
    AND (earlier._ingested_at, earlier._seq, earlier._position) <= (arrived._ingested_at, arrived._seq, arrived._position)
  WHERE earlier.event_date >= $from::DATE - 21
  GROUP BY ALL
), based AS (
  SELECT before.*, coalesce((
    SELECT product(ratio::DOUBLE) FROM splits
    WHERE splits.ticker = before.ticker AND ex_date > date_before AND ex_date <= event_date), 1) AS ratio
  FROM before
)
SELECT date_trunc('minute', _ingested_at) AS minute, ticker, max(abs(close * ratio / close_before - 1)) AS value
FROM based
WHERE close_before > 0
GROUP BY ALL
