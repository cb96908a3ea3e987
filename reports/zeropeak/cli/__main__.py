"""``python -m zeropeak.cli``."""

from zeropeak.cli.main import run

run()
