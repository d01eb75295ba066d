"""The stages: what the three verbs do with records, tickets and a ledger. Values in, values out; no file is touched.

Each module has a frozen options value, a plan (everything settled and refused, with nothing spent), and the stage itself.
"""
