"""The server extension, in a real jupyter_server."""
