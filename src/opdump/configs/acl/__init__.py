"""`acl.json`: the dialect of pyACL."""
