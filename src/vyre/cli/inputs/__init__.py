"""What a command line names, as values."""
