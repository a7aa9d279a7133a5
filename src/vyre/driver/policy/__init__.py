"""Which way is cheapest? Pure: facts in, a decision out, with its reason and numbers."""
