"""What exactly will be launched."""
