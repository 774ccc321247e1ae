"""``python -m dtensor_magic.client -f CONNECTION_FILE``: one client's kernel."""

from .app import main

main()
