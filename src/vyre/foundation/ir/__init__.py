"""What a program is: values, types, operators, statements, programs, and ways to build and walk them."""
