-- Age in days of the newest annual earnings, in the minute in which a price of a session arrived. Prices that arrive more than
-- five days after their session are history.
WITH arrived AS (
  SELECT ticker, date_trunc('minute', _ingested_at) AS minute, max(event_date) AS session_date
  FROM prices
  WHERE event_date >= $from::DATE - 6 AND _ingested_at >= $from AND _ingested_at < $to
    AND event_date >= _ingested_at::DATE - 5
  GROUP BY ALL
)
SELECT minute, ticker, date_diff('day', max(annual_filed), any_value(session_date)) AS value
FROM arrived JOIN eps_known USING (ticker)
WHERE valid_from <= session_date AND annual_filed IS NOT NULL
GROUP BY minute, ticker
