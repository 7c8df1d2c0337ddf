-- One row per date (UTC): how many different devices sent at least one event.
SELECT
  event_date,
  count(DISTINCT device_id) AS users
FROM events
GROUP BY event_date
