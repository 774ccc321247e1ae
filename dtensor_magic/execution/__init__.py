"""A cell on N clients: send it, gather what comes back, fold what is alike, show it."""
