WITH shown AS (
  SELECT isp || ' ' || region AS provider, 100 * rebuffer_ratio AS rebuffering, 100 * usual_low AS usual_low,
    100 * usual_high AS usual_high, hour
  FROM buffering_by_region
  WHERE hour >= $from AND hour < $to AND ($isp IS NULL OR isp = $isp)
), furthest AS (
  SELECT provider
  FROM shown
  GROUP BY provider
  ORDER BY max(rebuffering - coalesce(usual_high, 0)) DESC, provider
  LIMIT 3
)
SELECT hour, provider, rebuffering, usual_low, usual_high
FROM shown JOIN furthest USING (provider)
ORDER BY hour, provider
