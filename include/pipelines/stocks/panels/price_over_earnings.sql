-- Price over annual earnings as known before each session; none after a loss or 400 days after a filing.
SELECT price_date AS date, ticker, pe_annual
FROM pe_daily
WHERE price_date >= $from::DATE AND price_date < $to AND pe_annual IS NOT NULL
ORDER BY date
