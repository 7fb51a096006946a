-- No table. Whoever waits for this lock makes all later writers wait.
SELECT set_config('lock_timeout', '1s', true)
