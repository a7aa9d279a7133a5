"""What a program is and means."""
