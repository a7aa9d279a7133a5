"""Commands for a device."""
