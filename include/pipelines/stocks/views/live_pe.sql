-- Like pe_daily, for the newest price.
WITH joined AS (
  SELECT p.ticker, p.event_date AS price_date, p.event_time, p.close, e.valid_from, e.eps_annual, e.annual_filed,
    e.annual_available_on, e.eps_twelve_months, e.twelve_months_filed
  FROM latest_price p
  LEFT JOIN eps_known e
    ON e.ticker = p.ticker AND e.valid_from <= p.event_date AND (e.valid_to IS NULL OR p.event_date < e.valid_to)
), based AS (
  SELECT j.ticker,
    coalesce(product(s.ratio::DOUBLE) FILTER (WHERE s.ex_date >= j.annual_available_on), 1) AS annual_ratio,
    coalesce(product(s.ratio::DOUBLE) FILTER (WHERE s.ex_date >= j.valid_from), 1) AS twelve_months_ratio
  FROM joined j LEFT JOIN splits s ON s.ticker = j.ticker AND s.ex_date <= j.price_date
  GROUP BY j.ticker
)
SELECT j.ticker, j.event_time, j.price_date, j.close, j.eps_annual,
  CASE WHEN j.eps_annual > 0 AND j.price_date - j.annual_filed <= 400
    THEN j.close::DOUBLE * b.annual_ratio / j.eps_annual::DOUBLE END AS pe_annual,
  j.eps_twelve_months,
  CASE WHEN j.eps_twelve_months > 0 AND j.price_date - j.twelve_months_filed <= 400
    THEN j.close::DOUBLE * b.twelve_months_ratio / j.eps_twelve_months END AS pe_twelve_months
FROM joined j JOIN based b USING (ticker)
