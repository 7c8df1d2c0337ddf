-- One row per date and viewer with a problem. Device, version and network are those of the viewer's last view with a problem.
WITH ranked AS (
  SELECT *, row_number() OVER (PARTITION BY event_date, user_id ORDER BY has_problem DESC, started_at DESC, play_id DESC) AS place
  FROM views
  WHERE user_id IS NOT NULL
)
SELECT event_date, user_id,
  count(*) AS views,
  count_if(has_problem) AS problem_views,
  count_if(is_start_failure) AS start_failures,
  sum(fatal_errors) AS fatal_errors,
  sum(stalled_ms) AS stalled_ms,
  max(CASE WHEN place = 1 THEN device END) AS device,
  max(CASE WHEN place = 1 THEN os END) AS os,
  max(CASE WHEN place = 1 THEN os_version END) AS os_version,
  max(CASE WHEN place = 1 THEN app_version END) AS app_version,
  max(CASE WHEN place = 1 THEN isp END) AS isp,
  max(CASE WHEN place = 1 THEN country END) AS country
FROM ranked
GROUP BY event_date, user_id
HAVING count_if(has_problem) > 0
