-- A connection of ours that was lost may live on over there, and hold its locks until the network tells.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :pid
  AND (extract(epoch FROM backend_start) * 1000000)::bigint = :started
