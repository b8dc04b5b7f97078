"""Running a pipeline."""
