"""Is it still right?"""
