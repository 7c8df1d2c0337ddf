-- The newest price of each share and its ratio to earnings, within seconds.
SELECT ticker, price_date AS session, close::DOUBLE AS close, round(pe_annual, 2) AS "P/E", round(pe_twelve_months, 2) AS "P/E, twelve months"
FROM live_pe
WHERE price_date >= $from::DATE AND price_date < $to
ORDER BY ticker
