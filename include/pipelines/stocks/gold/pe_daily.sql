-- Prices are as traded; earnings are converted to their share basis by the splits since they were available. There is no price
-- over earnings for a loss, for missing earnings, and for earnings filed more than 400 days ago.
WITH newest AS (
  SELECT ticker, event_date AS price_date, close,
    row_number() OVER (PARTITION BY ticker, event_date ORDER BY _ingested_at DESC, _seq DESC, _position DESC) AS place
  FROM prices
), joined AS (
  SELECT n.ticker, n.price_date, n.close, c.closes_at,
    e.valid_from, e.eps_annual, e.annual_period_end, e.annual_filed, e.annual_available_on, e.known_late_days,
    e.eps_twelve_months, e.twelve_months_end, e.twelve_months_filed
  FROM newest n
  LEFT JOIN sessions c ON c.session_date = n.price_date
  LEFT JOIN eps_known e
    ON e.ticker = n.ticker AND e.valid_from <= n.price_date AND (e.valid_to IS NULL OR n.price_date < e.valid_to)
  WHERE n.place = 1
), based AS (
  SELECT j.ticker, j.price_date,
    coalesce(exp(sum(CASE WHEN s.ex_date >= j.annual_available_on THEN ln(CAST(s.ratio AS DOUBLE)) END)), 1) AS annual_ratio,
    coalesce(exp(sum(CASE WHEN s.ex_date >= j.valid_from THEN ln(CAST(s.ratio AS DOUBLE)) END)), 1) AS twelve_months_ratio
  FROM joined j LEFT JOIN splits s ON s.ticker = j.ticker AND s.ex_date <= j.price_date
  GROUP BY j.ticker, j.price_date
)
SELECT j.price_date, j.ticker, j.close, j.closes_at,
  j.eps_annual, j.annual_period_end, j.annual_filed, j.known_late_days,
  b.annual_ratio AS split_ratio,
  CASE WHEN j.eps_annual > 0 AND datediff(j.price_date, j.annual_filed) <= 400
    THEN CAST(j.close AS DOUBLE) * b.annual_ratio / CAST(j.eps_annual AS DOUBLE) END AS pe_annual,
  j.eps_twelve_months, j.twelve_months_end,
  CASE WHEN j.eps_twelve_months > 0 AND datediff(j.price_date, j.twelve_months_filed) <= 400
    THEN CAST(j.close AS DOUBLE) * b.twelve_months_ratio / j.eps_twelve_months END AS pe_twelve_months
FROM joined j JOIN based b ON b.ticker = j.ticker AND b.price_date = j.price_date
