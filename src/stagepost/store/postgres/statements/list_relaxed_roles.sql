-- Roles and databases that set it for their sessions, whichever of them the workers use.
SELECT coalesce(r.rolname::text, ''), coalesce(d.datname::text, ''), split_part(c.setting, '=', 2)
FROM pg_db_role_setting AS s
CROSS JOIN LATERAL unnest(s.setconfig) AS c (setting)
LEFT JOIN pg_roles AS r ON r.oid = s.setrole
LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
WHERE lower(c.setting) IN ('synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=no', 'synchronous_commit=0')
  AND (s.setdatabase = 0 OR d.datname = current_database())
ORDER BY 1, 2
