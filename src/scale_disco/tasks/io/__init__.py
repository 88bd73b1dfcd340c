"""Files, images, videos, the terminal: what all tasks read and write with."""
