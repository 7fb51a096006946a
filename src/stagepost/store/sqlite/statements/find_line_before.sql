-- A journal's positions are its ids.
SELECT :position - 1
