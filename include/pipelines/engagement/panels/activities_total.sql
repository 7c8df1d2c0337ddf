SELECT engagement_date AS date, sum(activities)::BIGINT AS activities
FROM activities_per_day
WHERE engagement_date >= $from::DATE AND engagement_date < $to
  AND ($organisation IS NULL OR org_id = $organisation)
GROUP BY date
ORDER BY date
