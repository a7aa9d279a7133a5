"""What stays on the device?"""
