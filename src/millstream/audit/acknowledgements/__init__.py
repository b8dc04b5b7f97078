"""What clients write down of what was acknowledged to them, and reading it back."""
