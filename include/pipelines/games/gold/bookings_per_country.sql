-- One row per date (UTC) and country with purchases: total amount and number. A purchase without country counts as '??'.
SELECT
  event_date,
  coalesce(country, '??') AS country,
  CAST(sum(amount) AS DECIMAL(18, 2)) AS bookings,
  count(*) AS purchases
FROM purchase
GROUP BY event_date, coalesce(country, '??')
