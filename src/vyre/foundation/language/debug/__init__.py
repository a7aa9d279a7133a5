"""What a kernel says of itself while it runs."""
