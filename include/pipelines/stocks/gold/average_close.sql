-- All closes are converted to the share basis of the newest price; vendors' adjusted closes also change with every dividend.
WITH newest AS (
  SELECT ticker, event_date AS price_date, close,
    row_number() OVER (PARTITION BY ticker, event_date ORDER BY _ingested_at DESC, _seq DESC, _position DESC) AS place
  FROM prices
), closes AS (
  SELECT ticker, price_date, close, max(price_date) OVER (PARTITION BY ticker) AS last_date FROM newest WHERE place = 1
), adjusted AS (
  SELECT c.ticker, c.price_date, c.last_date, c.close, coalesce(exp(sum(ln(CAST(s.ratio AS DOUBLE)))), 1) AS later_ratio
  FROM closes c
  LEFT JOIN splits s ON s.ticker = c.ticker AND s.ex_date > c.price_date AND s.ex_date <= c.last_date
  GROUP BY c.ticker, c.price_date, c.last_date, c.close
)
SELECT ticker, count(*) AS sessions, max(price_date) AS last_date, min(price_date) AS first_date,
  sum(close) AS close_sum,
  CAST(sum(close) AS DOUBLE) / count(*) AS average_close,
  sum(CAST(close AS DOUBLE) / later_ratio) / count(*) AS average_close_adjusted
FROM adjusted
GROUP BY ticker
