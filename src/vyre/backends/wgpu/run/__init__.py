"""Commands for a device, and what the binding has no public call for."""
