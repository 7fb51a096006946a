-- No table. It moves this many pages from the end of the file to free ones, and cuts the end off.
PRAGMA incremental_vacuum(256)
