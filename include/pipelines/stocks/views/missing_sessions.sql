WITH spans AS (SELECT ticker, min(price_date) AS first_date, max(price_date) AS last_date FROM pe_daily GROUP BY ticker)
SELECT t.ticker, s.session_date
FROM spans t JOIN sessions s ON s.session_date BETWEEN t.first_date AND t.last_date
ANTI JOIN pe_daily p ON p.ticker = t.ticker AND p.price_date = s.session_date
