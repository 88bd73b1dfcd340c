"""A tour of the library in minutes, with an HTML report."""
