"""The artifacts of dpltm on disk: ticket sets, runs and ledgers (formats: ``docs/formats.md``)."""

if __name__ != "dpltm.tickets":
    raise ImportError("import this package as dpltm.tickets, not as tickets: it is only installed under that name")
