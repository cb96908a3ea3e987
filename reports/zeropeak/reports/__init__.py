"""Tables to causes, figures, the PDF and findings.json."""
