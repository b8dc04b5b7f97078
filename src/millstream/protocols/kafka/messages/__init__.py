"""All supported requests and responses, by family."""
