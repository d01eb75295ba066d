"""The command line of dpltm; the only part that prints."""

if __name__ != "dpltm.cli":
    raise ImportError("import this package as dpltm.cli, not as cli: it is only installed under that name")
