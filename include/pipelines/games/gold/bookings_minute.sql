-- One row per minute (UTC), platform and version with purchases: total amount and number.
SELECT
  event_date,
  date_trunc('MINUTE', event_time) AS minute,
  platform, app_version,
  CAST(sum(amount) AS DECIMAL(18, 2)) AS bookings,
  count(*) AS purchases
FROM purchase
GROUP BY event_date, date_trunc('MINUTE', event_time), platform, app_version
