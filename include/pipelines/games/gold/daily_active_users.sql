-- One row per date (UTC): number of distinct devices with an event.
SELECT
  event_date,
  count(DISTINCT device_id) AS users
FROM events
GROUP BY event_date
