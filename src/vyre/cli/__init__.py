"""The command line: `vyre`, or `python -m vyre`."""
