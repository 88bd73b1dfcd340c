"""Scene geometry: the apparent scale at every place of an image (Sec. 4.4 of the paper)."""
