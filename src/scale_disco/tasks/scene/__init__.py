"""Scene geometry: how large things look, place by place of a photograph."""
