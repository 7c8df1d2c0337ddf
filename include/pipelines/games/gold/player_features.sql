-- State of a player (device) at the end of a Sunday: amount played in the last 7 and 28 days, time since the last play, and
-- experience as rates. The next Sunday fills day by day.
WITH days AS (
  SELECT *, explode(sequence(
      next_day(date_sub(event_date, 1), 'SU'), date_add(next_day(date_sub(event_date, 1), 'SU'), 21), INTERVAL 7 DAYS)) AS sunday
  FROM player_days
), present AS (
  SELECT *, CAST(sunday AS DATE) AS cutoff_date, event_date > date_sub(CAST(sunday AS DATE), 7) AS is_last_week
  FROM days
  WHERE arrived_date <= CAST(sunday AS DATE)
)
SELECT cutoff_date, device_id,
  coalesce(sum(CASE WHEN is_last_week THEN sessions END), 0) AS sessions_7,
  sum(sessions) AS sessions_28,
  coalesce(sum(CASE WHEN is_last_week THEN events END), 0) AS events_7,
  sum(events) AS events_28,
  count(DISTINCT event_date) AS days_28,
  datediff(cutoff_date, max(event_date)) AS recency_days,
  sum(purchases) AS purchases_28,
  sum(CASE WHEN is_last_week THEN failed_levels END) / nullif(sum(CASE WHEN is_last_week THEN levels END), 0) AS failures_7,
  sum(failed_levels) / nullif(sum(levels), 0) AS failures_28,
  sum(CASE WHEN is_last_week THEN ended_sessions END) / nullif(sum(CASE WHEN is_last_week THEN sessions END), 0) AS ended_7,
  sum(ended_sessions) / nullif(sum(sessions), 0) AS ended_28
FROM present
GROUP BY cutoff_date, device_id
