"""The one boundary in front of every backend."""
