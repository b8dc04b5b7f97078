"""Who may do what: principals, credentials, ACLs, and the one gate that all servers ask."""
