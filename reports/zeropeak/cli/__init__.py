"""The command line: one file a verb, one explicit table of them."""
