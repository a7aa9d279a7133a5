"""What is known of a program before it runs: is it sound, what does it need, does an order show?"""
