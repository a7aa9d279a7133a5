"""Random programs: valid ones, ones whose lanes part, and damaged ones."""
