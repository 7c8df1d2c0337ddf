WITH spans AS (SELECT ticker, min(price_date) AS first_date, max(price_date) AS last_date FROM pe_daily GROUP BY ticker),
due AS (
  SELECT t.ticker, s.session_date FROM spans t JOIN sessions s ON s.session_date BETWEEN t.first_date AND t.last_date
)
SELECT d.ticker, d.session_date, p.close, d.session_date - p.price_date AS days_stale
FROM due d ASOF LEFT JOIN pe_daily p ON p.ticker = d.ticker AND p.price_date <= d.session_date
