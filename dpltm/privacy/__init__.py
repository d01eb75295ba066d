"""Privacy accounting: what was done (events), what it costs (accountant), what is on record (ledger)."""
