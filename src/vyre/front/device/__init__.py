"""Arrays on a device, and kernel calls over them."""
