SELECT pg_try_advisory_lock(:class::int, :id::int)
