"""`python -m forerun.cli`: the command, without its script."""

from forerun.cli.main import app

if __name__ == "__main__":
    app()
