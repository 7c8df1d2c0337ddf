-- One row per hour (UTC): edits, distinct users and characters added.
SELECT
  event_date,
  date_trunc('HOUR', event_time) AS hour,
  count(*) AS edits,
  count(DISTINCT user_name) AS users,
  sum(added) AS added
FROM edits
GROUP BY event_date, date_trunc('HOUR', event_time)
