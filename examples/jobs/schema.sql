CREATE TABLE job (id text PRIMARY KEY, is_handed_out boolean NOT NULL DEFAULT false);
-- The table has no unique key, so that a job that is done twice has two rows.
CREATE TABLE job_done (job_id text NOT NULL);
INSERT INTO job (id) SELECT 'job-' || lpad(n::text, 2, '0') FROM generate_series(1, 10) AS n;
