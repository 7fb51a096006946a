INSERT INTO stagepost_quarantine (run_id, file, record, reason, flow_id, row)
SELECT :run_id, * FROM unnest(:files::text[], :records::bigint[], :reasons::text[], :flow_ids::text[], :rows::text[])
