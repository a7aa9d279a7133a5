"""Which backends are there, and in which order are they asked?"""
