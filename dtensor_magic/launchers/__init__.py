"""How an agent reaches a host. ``local`` is this machine."""
