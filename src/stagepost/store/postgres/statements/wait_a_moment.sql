-- No table. A session that waits for an exclusive lock makes all later writers wait.
SELECT set_config('lock_timeout', '1s', true)
