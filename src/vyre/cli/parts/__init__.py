"""What commands are made of, where that is a subject of its own."""
