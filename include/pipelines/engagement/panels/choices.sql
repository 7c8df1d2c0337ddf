SELECT DISTINCT 'organisation' AS filter, org_id AS value
FROM activities_per_day
WHERE engagement_date >= $from::DATE AND engagement_date < $to
