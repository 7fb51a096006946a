-- No table.
SELECT stagepost_drop_range(:first::bigint, :next::bigint, :kept::text[])
