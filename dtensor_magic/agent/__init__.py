"""The host agent: a supervisor without TensorFlow, and a template with it that forks clients.

Nothing here imports the driver's side.
"""
