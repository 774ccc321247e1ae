"""The Jupyter Server extension: the clusters of this user over REST, live, whatever the notebooks' kernels do."""
