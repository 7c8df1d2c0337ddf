-- One row per date (UTC): edits, distinct users, anonymous edits, characters added and deleted.
SELECT
  event_date,
  count(*) AS edits,
  count(DISTINCT user_name) AS users,
  count_if(is_anonymous) AS anonymous,
  sum(added) AS added,
  sum(deleted) AS deleted
FROM edits
GROUP BY event_date
