SELECT org_id AS organisation, contact_name AS contact, activities::BIGINT AS activities, last_date AS "last active"
FROM top_contacts
WHERE last_date >= $from::DATE
  AND ($organisation IS NULL OR org_id = $organisation)
ORDER BY activities DESC, organisation, contact
LIMIT 20
