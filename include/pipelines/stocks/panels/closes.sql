-- Closes as traded.
SELECT price_date AS date, ticker, close
FROM pe_daily
WHERE price_date >= $from::DATE AND price_date < $to
ORDER BY date
