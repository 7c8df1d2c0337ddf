-- One row per hour (UTC) with purchases: total amount and number.
SELECT
  event_date,
  date_trunc('HOUR', event_time) AS hour,
  CAST(sum(amount) AS DECIMAL(18, 2)) AS bookings,
  count(*) AS purchases
FROM purchase
GROUP BY event_date, date_trunc('HOUR', event_time)
