SELECT nextval(pg_get_serial_sequence('stagepost_incarnation', 'id'))::int
