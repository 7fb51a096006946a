-- No table of ours: the size of the database's files, and the folder that holds them. The folder is NULL for a role that
-- may not see it.
SELECT pg_database_size(current_database()),
       coalesce(nullif(pg_tablespace_location(d.dattablespace), ''),
                (SELECT setting FROM pg_settings WHERE name = 'data_directory'))
FROM pg_database AS d
WHERE d.datname = current_database()
