"""Payment orders through staged, transactional endpoints; a ledger that shows what was done twice."""
