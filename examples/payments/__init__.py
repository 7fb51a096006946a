"""Payment orders on transactional stages. The ledger shows each order that was executed twice."""
