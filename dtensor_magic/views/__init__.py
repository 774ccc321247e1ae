"""What users see, drawn from ``state.py`` alone: text for terminals and logs, HTML for notebooks."""
