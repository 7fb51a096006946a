-- No table.
SELECT stagepost_cut_journal()
