-- Age in days of the newest annual earnings known on a day with a price.
SELECT price_date::TIMESTAMPTZ AS minute, ticker, date_diff('day', annual_filed, price_date) AS value
FROM pe_daily
WHERE price_date >= $from::DATE AND price_date < $to AND annual_filed IS NOT NULL
