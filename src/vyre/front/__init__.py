"""What users call: kernel objects on NumPy arrays."""
