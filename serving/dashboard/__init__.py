"""The dashboard: what is looked at once a second, and the page that shows it."""
