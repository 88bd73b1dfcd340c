"""Classification of STL-10 or of folders of images (Tables 2 and 3)."""
