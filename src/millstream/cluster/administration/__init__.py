"""Administration of a cluster: changes that operators ask for, and what they see."""
