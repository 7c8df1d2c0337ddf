SELECT device, os || ' ' || os_version AS os, app_version AS version, sum(viewers)::BIGINT AS viewers,
  round(100 * sum(problem_viewers) / sum(viewers), 1) AS "with a problem, %"
FROM problems_by_os
WHERE event_date >= $from::DATE AND event_date < $to
  AND ($device IS NULL OR device = $device)
  AND ($version IS NULL OR app_version = $version)
GROUP BY ALL
ORDER BY 5 DESC, viewers DESC, device, os, version
LIMIT 15
