"""The command line: thin, one file per command. Each imports what it runs when it runs."""
