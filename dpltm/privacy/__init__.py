"""Privacy accounting: what was done (events), what it costs (accountant), what is on record (ledger)."""

from dpltm.registry import lazily

__getattr__, __dir__ = lazily(__name__)
