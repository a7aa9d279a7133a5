"""How programs are written down: text, wire, canonical form."""
