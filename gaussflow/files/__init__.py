"""Problem files, arrays and results on disk."""
