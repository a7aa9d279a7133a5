"""Small values: several numbers under one name. They are numbers by themselves before there is a program."""
