"""Inputs that find mistakes, and distances between results."""
