"""The panel in the notebook: a form to start a cluster with, buttons, and live pictures of it."""
