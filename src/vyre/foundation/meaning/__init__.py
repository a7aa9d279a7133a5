"""What every operator computes."""
