"""Command line: one thin file per verb."""
