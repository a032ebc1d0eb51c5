"""Programs that start an engine in a process of their own: `python -m e2e.programs.NAME`."""
