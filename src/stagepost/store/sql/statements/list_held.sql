-- The positions of the readers that were there lately. As few as there are readers.
SELECT epoch || ':' || position FROM stagepost_cursor WHERE hour + 0 >= :hour
UNION ALL
SELECT position FROM stagepost_audit_state WHERE hour + 0 >= :hour
