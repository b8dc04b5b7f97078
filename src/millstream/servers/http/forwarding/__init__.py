"""HTTP requests that other nodes are responsible for: sent to them, and received from them."""
