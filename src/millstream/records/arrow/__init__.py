"""Record batches as Arrow columns, and back."""
