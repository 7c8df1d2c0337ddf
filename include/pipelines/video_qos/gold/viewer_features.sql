-- State of a viewer at the end of a Sunday: amount played in the last 7 and 28 days, time since the last play, and quality.
-- Quality is a rate, since heavy viewers have more stalls in total. The next Sunday fills day by day.
WITH plays AS (
  SELECT *, explode(sequence(
      next_day(date_sub(event_date, 1), 'SU'), date_add(next_day(date_sub(event_date, 1), 'SU'), 21), INTERVAL 7 DAYS)) AS sunday
  FROM viewer_plays
), present AS (
  SELECT *, CAST(sunday AS DATE) AS cutoff_date, event_date > date_sub(CAST(sunday AS DATE), 7) AS is_last_week
  FROM plays
  WHERE arrived_at < CAST(date_add(CAST(sunday AS DATE), 1) AS TIMESTAMP)
)
SELECT cutoff_date, user_id,
  count_if(is_played AND is_last_week) AS plays_7,
  count_if(is_played) AS plays_28,
  coalesce(sum(CASE WHEN is_last_week THEN played_ms END), 0) / 60000 AS minutes_7,
  sum(played_ms) / 60000 AS minutes_28,
  count(DISTINCT CASE WHEN is_played THEN event_date END) AS days_28,
  datediff(cutoff_date, max(CASE WHEN is_played THEN event_date END)) AS recency_days,
  percentile_cont(0.95) WITHIN GROUP (ORDER BY CASE WHEN is_last_week THEN startup_ms END) AS startup_ms_p95_7,
  percentile_cont(0.95) WITHIN GROUP (ORDER BY startup_ms) AS startup_ms_p95_28,
  sum(CASE WHEN is_last_week THEN stalled_ms END) / nullif(sum(CASE WHEN is_last_week THEN stalled_ms + played_ms END), 0) AS rebuffer_7,
  sum(stalled_ms) / nullif(sum(stalled_ms + played_ms), 0) AS rebuffer_28,
  count_if(is_failed AND is_last_week) / nullif(count_if(is_last_week), 0) AS failures_7,
  count_if(is_failed) / count(*) AS failures_28
FROM present
GROUP BY cutoff_date, user_id
HAVING count_if(is_played) > 0
