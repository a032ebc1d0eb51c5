"""`python -m forerun` is `forerun`."""

from forerun.cli.main import app

app(prog_name="forerun")
