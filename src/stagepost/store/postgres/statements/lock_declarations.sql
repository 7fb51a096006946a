-- Two apps that declare the same stage for the first time find no row to wait for. The number is ours by chance.
SELECT pg_advisory_xact_lock(7301472817)
