-- One row per date with purchases: total amount and number.
SELECT
  event_date,
  CAST(sum(amount) AS DECIMAL(18, 2)) AS bookings,
  count(*) AS purchases
FROM events
WHERE event_name = 'purchase'
GROUP BY event_date
