-- No table. A file that was made without it has auto_vacuum 0 for good.
SELECT f.freelist_count, c.page_count, v.auto_vacuum
FROM pragma_freelist_count AS f, pragma_page_count AS c, pragma_auto_vacuum AS v
