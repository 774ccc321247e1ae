"""What runs inside a client: a kernel that initialises DTensor while it starts.

Nothing here imports the driver's side.
"""
